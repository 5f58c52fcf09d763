"""z ~ N(0, I_d): MeZO, P-RGE and sensitive sparse ZO."""

from __future__ import annotations

import torch
from torch import Tensor

from zo_sweeps.engine import noise
from zo_sweeps.engine.types import NoiseKey


class Gaussian:
    """E[z z^T] = I; E||ghat||^2 / ||grad f||^2 = d + 2 for one direction."""

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        return noise.gaussian(key, name, shape, device)
