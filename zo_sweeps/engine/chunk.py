"""The number of values of a weight that are computed at a time."""

from __future__ import annotations

import torch

CPU = 1 << 20  # 4 MB in fp32, which fit the L2 caches
ELSEWHERE = 1 << 26  # other devices need larger kernels


def rows_at_once(into: int, device: torch.device) -> int:
    """Return how many rows of a weight with `into` inputs are computed at a time; at least one."""
    return max(1, (CPU if device.type == "cpu" else ELSEWHERE) // into)
