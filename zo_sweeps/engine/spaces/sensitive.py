"""Sensitive parameters: the entries with the largest squared gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from zo_sweeps.engine.later import nn, sparse
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.space import Found, InstalledSpace, SparseSpace, chosen


@dataclass(frozen=True)
class Sensitive(SparseSpace):
    """The entries of a mask found by backpropagation, recomputed every `refresh` steps (0: never).

    The mask needs gradients, hence batches and a loss, which a space does not have: `run/packages.py` computes the
    masks and passes them to `install` as `mask`. The paper leaves open the scope and the score (engine/masks.py
    discusses both), and the number and length of the samples. Source: Guo et al., 2024, definitions 3 and 4,
    eqs. 11 and 12.
    """

    needs_gradients: ClassVar[bool] = True

    scope: Literal["per_layer", "global"] = option("per_layer", "largest of each layer, or of all together")
    score: Literal["fisher", "mean_gradient"] = option(
        "fisher", "fisher: mean of squared gradients of single examples; mean_gradient: square of their mean"
    )
    source: Literal["task", "text"] = option(
        "task", "gradients of the task's loss, or of the language-model loss on a text"
    )
    text: str = option("text/c4_sample.jsonl", "for source text: JSON lines, under data.dir", identity=False)
    samples: int = option(128, "examples whose gradients are used", least=1)
    length: int = option(512, "tokens of a text sample", least=2)
    refresh: int = option(
        0, "steps between masks (dynamic in the paper: 100); 0: computed once, before training", least=0
    )

    @property
    def of_text(self) -> str:
        return self.text if self.source == "text" else ""

    @property
    def found_from(self) -> Mapping[str, Any]:
        names = ("density", "scope", "score", "source", "samples", *(("length",) if self.of_text else ()))
        return {name: getattr(self, name) for name in (*names, *(["blocks"] if self.blocks else []))}

    @property
    def renewed_every(self) -> int:
        return self.refresh

    def trainable(self, arch: Arch) -> int:
        return chosen(arch, self.targets, self.density, self.scope)

    def install(self, module: nn.Module, layers: Sequence[str], seed: int, mask: Found | None = None) -> InstalledSpace:
        assert mask is not None, "compute the mask before installing the space"
        masks = {name: mask.masks[name] for name in layers if name in mask.masks}  # a stored one has another order
        return sparse.Sparse(module, masks, self.refresh, mask.find, apart=self.product == "addmm", values=mask.values)
