"""z = U diag(tau) V^T between two factors that last for the whole run: TeZO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.engine.perturbations._bases import Factored
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.points import NoiseKey


@dataclass(frozen=True)
class TeZO(Factored):
    """Z = U diag(tau) V^T / sqrt(r), tau [r] of N(0, 1), for a matrix [m, n]; N(0, 1) for any other shape.

    U [m, r] and V [n, r] of N(0, 1) are drawn once for the run, for all queries; tau for each direction: the steps of a
    matrix are one tensor of rank r (its CP decomposition). E[z z^T] = I over U, V and tau. What is orthogonal to the r
    fixed directions of a matrix never changes. Cost: r Gaussians a direction and the (m + n) r of U and V, drawn again
    each time; no state. Source: Sun et al., TeZO: Empowering the low-rankness on the temporal dimension in the
    zeroth-order optimization, 2025, whose rank differs by layer; here it is one number.
    """

    keeps_factor: ClassVar[bool] = True

    rank: int = option(24, "r, the directions of a matrix", least=1)

    def factors(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> tuple[Tensor, Tensor]:
        run = NoiseKey(key.seed, 0, 0)
        U, V = (
            noise.gaussian(run, f"{name}/{side}", torch.Size((size, self.rank)), device)
            for side, size in zip("UV", shape, strict=True)
        )
        tau = noise.gaussian(key, f"{name}/tau", torch.Size((self.rank,)), device)
        return U.mul_(tau.mul_(self.rank**-0.5)), V
