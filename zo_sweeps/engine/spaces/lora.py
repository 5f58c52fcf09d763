"""LoRA: both factors are trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.space import Found, InstalledSpace, LowRankSpace

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class LoRA(LowRankSpace):
    """A ~ Kaiming-uniform (or Gaussian), B = 0, both trained in fp32: d = r (in + out) per layer.

    Args:
        rank: r of the factors A [r, in] and B [out, r].
        alpha: the low-rank term is multiplied by alpha / r.
        targets: roles of the layers to adapt.
        init: distribution of A at the start.

    Source: LoRA (Hu et al., 2021), section 4.1.
    """

    trains_both: ClassVar[bool] = True  # factors; else B alone

    def trainable(self, arch: Arch) -> int:
        return self.rank * (arch.inputs(self.targets) + arch.outputs(self.targets))

    def install(self, module: nn.Module, layers: Sequence[str], seed: int, mask: Found | None = None) -> InstalledSpace:
        from zo_sweeps.engine.layers.low_rank import LowRankLinear, Wrapped, initial_key

        options, key = (self.rank, self.alpha, self.init, self.trains_both), initial_key(seed)
        return Wrapped(module, layers, lambda base, name: LowRankLinear(base, *options, key, name))
