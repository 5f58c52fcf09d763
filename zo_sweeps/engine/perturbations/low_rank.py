"""z = U V^T / sqrt(r) for a matrix: LOZO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class LowRank(Perturbation):
    """Z = U V^T / sqrt(r), U [m, r] and V [n, r] of N(0, 1), for a matrix [m, n]; N(0, 1) for any other shape.

    Args:
        rank: r.
        interval: steps between draws of V (LOZO's nu): steps 1 .. nu share one V, then nu + 1 .. 2 nu. U is drawn at
            each step. Each of the q queries has its own U and V.

    E[z z^T] = I over U and V; for a fixed V, the expected estimate is the gradient times V V^T / r. For one direction
    and a matrix E||ghat||^2 / ||grad f||^2 = d + 2 + 2 (m + n + 1) / r, d = m n.

    Cost: (m + n) r Gaussians instead of m n, and one product. Source: Chen et al., Enhancing zeroth-order fine-tuning
    for language models with low-rank structures, Algorithm 1. The paper perturbs by U V^T and divides the estimate by
    r: its eps equals ours / sqrt(r), at the same learning rate.
    """

    rank: int = option(2, "r, the rank of a matrix's direction", least=1)
    interval: int = option(50, "steps between draws of V", least=1)

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        import torch

        from zo_sweeps.engine import noise

        if len(shape) != 2:
            return noise.gaussian(key, name, shape, device)
        held = key._replace(step=key.step - (key.step - 1) % self.interval)  # the first step of V's window
        U = noise.gaussian(key, f"{name}/U", torch.Size((shape[0], self.rank)), device)
        V = noise.gaussian(held, f"{name}/V", torch.Size((shape[1], self.rank)), device)
        return U.mul_(self.rank**-0.5) @ V.T
