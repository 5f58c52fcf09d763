"""Weight outliers: the entries of largest magnitude."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from zo_sweeps.engine.later import masks, nn, sparse
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.space import Found, InstalledSpace, SparseSpace, chosen


@dataclass(frozen=True)
class Outliers(SparseSpace):
    """The density * numel largest |w|, chosen once, before training.

    Source: Guo et al., 2024, section 4.1.
    """

    scope: Literal["per_layer", "global"] = option("per_layer", "largest of each layer, or of all together")

    def trainable(self, arch: Arch) -> int:
        return chosen(arch, self.targets, self.density, self.scope)

    def install(self, module: nn.Module, layers: Sequence[str], seed: int, mask: Found | None = None) -> InstalledSpace:
        mask_of = masks.outliers(sparse.weights(module, layers), self.density, self.scope)
        return sparse.Sparse(module, mask_of, apart=self.product == "addmm")
