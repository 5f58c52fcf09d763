"""z = U Z V^T between two orthonormal bases that last for a window of steps: SubZero."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.engine.perturbations._bases import Factored, window
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.points import Layout, NoiseKey
from zo_sweeps_league.perturbations._bases import Bases, orthonormal


@dataclass(frozen=True)
class Subspace(Factored):
    """Z = sqrt(m n) / r U Y V^T with Y [r, r] of N(0, 1), for a matrix [m, n]; N(0, 1) for any other shape.

    U [m, r] and V [n, r] have orthonormal columns, uniform over such matrices, drawn once for `interval` steps (T_0)
    and query; Y is drawn for each direction. A matrix with fewer than r rows or columns has that many for r.

    E[z z^T] = I over U, V and Y, and E||Z||^2 = m n for any U and V. Within a window the expected estimate is the
    gradient times m n / r^2 U U^T . V V^T. Cost: r^2 Gaussians and two thin products a direction; (m + n) r floats kept
    for a matrix and query, in the window. Source: Yu et al., Zeroth-order fine-tuning of LLMs in random subspaces
    (SubZero), 2024, which also reshapes the thin matrices of adapters to nearly square ones first: not done here.
    """

    rank: int = option(24, "r, the rank of a matrix's direction", least=1)
    interval: int = option(1000, "steps that share the bases U and V", least=1)
    _kept: Bases = field(default_factory=dict, repr=False, compare=False, kw_only=True, metadata={"option": False})

    def bind(self, layout: Layout) -> Subspace:
        return replace(self, _kept={})

    def factors(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> tuple[Tensor, Tensor]:
        held, r = window(key, self.interval), min(self.rank, *shape)
        U, V = (
            orthonormal(self._kept, held, f"{name}/{side}", size, r, device)
            for side, size in zip("UV", shape, strict=True)
        )
        Y = noise.gaussian(key, f"{name}/Y", torch.Size((r, r)), device)
        return (U @ Y).mul_(math.sqrt(math.prod(shape)) / r), V.clone()
