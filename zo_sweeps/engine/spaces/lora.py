"""LoRA: both factors are trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.later import low_rank, nn
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.space import Found, InstalledSpace, LowRankSpace


@dataclass(frozen=True)
class LoRA(LowRankSpace):
    """A ~ Kaiming-uniform (or Gaussian), B = 0, both trained in fp32: d = r (in + out) per layer.

    Source: LoRA (Hu et al., 2021), section 4.1.
    """

    trains_both: ClassVar[bool] = True  # factors; else B alone

    @property
    def linear(self) -> type[low_rank.LowRankLinear]:
        """The layer in place of each target."""
        return low_rank.LowRankLinear

    def trainable(self, arch: Arch) -> int:
        return self.rank * (arch.inputs(self.targets) + arch.outputs(self.targets))

    def install(self, module: nn.Module, layers: Sequence[str], seed: int, mask: Found | None = None) -> InstalledSpace:
        options, key = (self.rank, self.alpha, self.init, self.trains_both), low_rank.initial_key(seed)
        return low_rank.Wrapped(module, layers, lambda base, name: self.linear(base, *options, key, name))
