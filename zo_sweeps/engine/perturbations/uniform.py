"""z ~ U(-1, 1)^d, unscaled: PeZO's naive baseline."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey


@dataclass(frozen=True)
class Uniform(Perturbation):
    """z_j = 2 u_j - 1, bit-identical on every device.

    The variance is not 1: E[z z^T] = I/3, so that the mean estimate is a third of the gradient and eps reaches
    sqrt(d/3) instead of sqrt(d). PeZO Table 3 lists it as a baseline that fails to train (its range and eps are not
    given); the same numbers scaled to a Gaussian's modulus are `pezo_pool`.
    """

    def second_moment(self, shape: torch.Size) -> float:
        return 1 / 3

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        return noise.uniform(key, name, shape, device).mul_(2.0).sub_(1.0)
