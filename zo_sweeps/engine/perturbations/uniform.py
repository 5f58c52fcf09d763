"""z ~ U(-1, 1)^d, unscaled: PeZO's naive baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from zo_sweeps.engine import noise
from zo_sweeps.engine.types import Layout, NoiseKey


class Uniform:
    """z_j = 2 u_j - 1, the same bits on every device.

    Not of unit variance: E[z z^T] = I/3, so that the mean estimate is a third of the gradient and eps reaches
    sqrt(d/3) instead of sqrt(d). PeZO Table 3 prints it as a baseline that fails to train (its range and eps are not
    given); the same numbers scaled to a Gaussian's modulus are `pezo_pool`.
    """

    def bind(self, layout: Layout) -> Uniform:
        return self

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        return noise.uniform(key, name, shape, device).mul_(2.0).sub_(1.0)
