"""Prefix tuning: n keys and values per layer to which every token attends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.engine.later import nn, prefix
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.space import AdapterFormat, Found, InstalledSpace, Space


@dataclass(frozen=True)
class PrefixTuning(Space):
    """Starts from the keys and values of random tokens of the vocabulary: d = layers * 2 * n * width of the keys.

    Args:
        length: n, subtracted from the positions available to the text.

    Source: prefix tuning (Li and Liang, 2021) without its reparametrisation; MeZO (n = 5, initial values).
    """

    starts_at_model: ClassVar[bool] = False  # keys and values of drawn texts stand before every text
    starts_computed: ClassVar[bool] = True
    adapter: ClassVar[AdapterFormat | None] = AdapterFormat("PREFIX_TUNING", prefix=True)

    length: int = option(5, "n, keys and values per layer", least=1)

    @property
    def positions(self) -> int:
        return self.length

    def trainable(self, arch: Arch) -> int:
        return arch.layers * 2 * self.length * arch.kv_heads * arch.head_width

    def install(self, module: nn.Module, layers: Sequence[str], seed: int, mask: Found | None = None) -> InstalledSpace:
        model: Any = module  # of transformers, whose embeddings are their own method's
        embeddings = model.get_input_embeddings()
        return prefix.Prefix(module, self.length, embeddings.weight.shape[0], seed)
