"""Frozen weights as 4-bit codes of a table per row, made by sensitivity-weighted k-means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from zo_sweeps.engine.later import Tensor, lookup, masks, weight_only
from zo_sweeps.engine.precisions._encoded import Encoded
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.points import Theta
from zo_sweeps.methods.space import share


@dataclass(frozen=True)
class SqueezeLLM(Encoded):
    """w[r, j] = table[r, c[r, j]], c of 4 bits; a share of the entries is kept outside, in `compute`, as tables are.

    The table of a row minimizes sum_j s_j (w_j - table[c_j])^2 over its entries that are not kept; s, their
    sensitivity, is the mean of the squared gradients of single texts (the diagonal of the empirical Fisher). Kept are
    the most sensitive entries of each weight, as a mask of the same settings chooses them. Without sensitivities s = 1,
    and the entries of largest magnitude are kept. The codes are computed from the plain weights once per machine, and
    stored there; a package brings its own.

    Source: SqueezeLLM (Kim et al., 2023, arXiv:2306.07629), sections 4.1 and 4.2; Guo et al. (2024), Figure 4 and eq.
    13. SqueezeLLM keeps outliers by magnitude besides; its k-means is a heuristic of random starts.
    """

    numerics: ClassVar[int] = 2
    prepared: ClassVar[bool] = True
    stores: ClassVar[frozenset[Theta]] = frozenset()  # tables without scales

    sensitivity: Literal["text", "none"] = option(
        "text", "weights of the k-means: squared gradients of the language-model loss on a text, or none"
    )
    text: str = option("text/c4_sample.jsonl", "the text: JSON lines, under data.dir", identity=False)
    samples: int = option(128, "texts whose gradients are used", least=1)
    length: int = option(512, "tokens of a text", least=2)
    kept: float = option(1e-3, "share of each weight's entries that are kept outside the codes", least=0, most=1)

    @property
    def of_text(self) -> str:
        return self.text if self.sensitivity == "text" else ""

    def code_bytes(self, out: int, into: int) -> int:
        return out * -(-into // 2) + self.scale_bytes(out, into) + self.kept_bytes(out, into)

    def scale_bytes(self, out: int, into: int) -> int:
        return out * 16 * self.format.bytes

    def kept_bytes(self, out: int, into: int) -> int:
        return (share(out * into, self.kept) if self.kept else 0) * (4 + self.format.bytes)

    def scales(self, out: int, into: int) -> int:
        return 0

    def encode(self, weight: Tensor) -> weight_only.WeightCodes:
        return self.encode_weighted(weight, None)

    def encode_weighted(self, weight: Tensor, sensitivity: Tensor | None) -> weight_only.WeightCodes:
        ranked = weight.abs() if sensitivity is None else sensitivity
        kept = masks.top({"": ranked}, self.kept)[""] if self.kept else ranked.new_empty(0).long()
        return lookup.Lookup(weight, self.dtype, kept.to(weight.device), sensitivity)
