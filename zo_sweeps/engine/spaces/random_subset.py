"""Random subset: the control for sensitive parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zo_sweeps.engine.later import low_rank, masks, nn, sparse
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import Found, InstalledSpace, SparseSpace, chosen


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
        chosen_from, density = sparse.weights(module, layers), self.density

        def find(step: int) -> masks.Masks:
            return masks.random(chosen_from, density, NoiseKey(seed, low_rank.INIT_STEP, step))

        return sparse.Sparse(module, find(0), self.refresh, find, apart=self.product == "addmm")
