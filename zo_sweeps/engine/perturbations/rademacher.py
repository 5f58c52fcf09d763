"""z_j = +1 or -1: SPSA's classical choice."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from zo_sweeps.engine import noise
from zo_sweeps.engine.types import Layout, NoiseKey


@lru_cache
def _signs(device: torch.device) -> Tensor:
    """[256, 8]: the signs of a byte's bits, lowest bit first."""
    byte, bit = torch.arange(256, device=device).unsqueeze(1), torch.arange(8, device=device)
    return ((byte >> bit & 1) * 2 - 1).float()


class Rademacher:
    """z_j = 2 bit - 1 with bit j mod 32 (lowest first) of word j // 32: the same signs on every device.

    E[z z^T] = I and ||z||^2 = d exactly, so that E||ghat||^2 / ||grad f||^2 = d for one direction, the least of any
    distribution with independent elements. Cost: one hashed word for 32 elements, and a table look-up of 8 a byte.
    Source: Spall, Multivariate stochastic approximation using a simultaneous perturbation gradient approximation,
    1992; PeZO Table 3 has it as a baseline that fails to train.
    """

    def bind(self, layout: Layout) -> Rademacher:
        return self

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        count = shape.numel()
        words = noise.integers(key, name, -(-count // 32), device)
        signs = _signs(torch.device(device)).index_select(0, words.view(torch.uint8).int())
        return signs.view(-1)[:count].view(shape)
