"""The number of values of a weight that are computed at a time."""

from __future__ import annotations

import torch

CPU = 1 << 20  # 4 MB in fp32, which fit the L2 caches
ELSEWHERE = 1 << 26  # other devices need larger kernels
MULTIPLE = 16  # a CPU's product by 95 rows of 11008 takes 1.4 times as long as that by 96


def rows_at_once(into: int, device: torch.device) -> int:
    """Return how many rows of a weight with `into` inputs are computed at a time: a multiple of 16."""
    values = CPU if device.type == "cpu" else ELSEWHERE
    return max(1, -(-values // into // MULTIPLE)) * MULTIPLE
