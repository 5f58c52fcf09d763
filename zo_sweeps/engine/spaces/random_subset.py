"""Random subset: the control for sensitive parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.space import Found, InstalledSpace, SparseSpace, chosen

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class RandomSubset(SparseSpace):
    """density * numel entries of each layer, drawn from the trial's seed and redrawn every `refresh` steps (0: never).

    Source: Guo et al., 2024, section 4.1.
    """

    refresh: int = option(0, "steps between masks; 0: one for the whole run", least=0)

    @property
    def renewed_every(self) -> int:
        return self.refresh

    def trainable(self, arch: Arch) -> int:
        return chosen(arch, self.targets, self.density)

    def install(self, module: nn.Module, layers: Sequence[str], seed: int, mask: Found | None = None) -> InstalledSpace:
        from zo_sweeps.engine import masks
        from zo_sweeps.engine.layers.low_rank import INIT_STEP
        from zo_sweeps.engine.layers.sparse import Sparse, weights
        from zo_sweeps.methods.points import NoiseKey

        chosen_from, density = weights(module, layers), self.density

        def find(step: int) -> masks.Masks:
            return masks.random(chosen_from, density, NoiseKey(seed, INIT_STEP, step))

        return Sparse(module, find(0), self.refresh, find, apart=self.product == "addmm")
