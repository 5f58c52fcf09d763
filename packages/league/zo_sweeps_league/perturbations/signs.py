"""One Gaussian matrix for all directions of a step, with signs of its rows and columns for each: GRZO."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey


@dataclass(frozen=True)
class Signs(Perturbation):
    """Z_i = U . (r_i s_i^T) for a matrix, U of N(0, 1) the step's, r_i and s_i signs of direction i.

    In any other shape z_i = u . s_i, u of the step.

    E[z z^T] = I, and two directions of a step are uncorrelated, E[z_i z_j^T] = 0, while they share all magnitudes. A
    layer can so compute a minibatch in which every row has its own direction with two products, which this engine does
    not use. Cost: MeZO's noise, and m + n signs, a direction. Source: GRZO, 2025.
    """

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        z = noise.gaussian(key._replace(query=0), name, shape, device)
        for dim in range(len(shape)) if len(shape) == 2 else [-1]:
            sizes = [1] * len(shape)
            if shape:
                sizes[dim] = shape[dim]
            z.mul_(noise.signs(key, f"{name}/sign{dim}", torch.Size(sizes), device))
        return z
