"""PeZO's pool of uniform numbers, as tensors; the perturbation is `perturbations/pezo_pool.py`."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from zo_sweeps.engine import noise
from zo_sweeps.engine.cached import cached
from zo_sweeps.engine.lfsr import SEED_STEP
from zo_sweeps.engine.modulus import expected_norm, round_factor
from zo_sweeps.methods.points import NoiseKey


@cached(8)
def pool(seed: int, k: int, bits: int | None = None) -> Tensor:
    """Return N = 2^k - 1 numbers of U(-1, 1), [N] fp32 on the CPU; `bits`: as fixed-point numbers of so many bits."""
    numbers = noise.uniform(NoiseKey(seed, SEED_STEP, 0), "pool", torch.Size([(1 << k) - 1])).mul_(2.0).sub_(1.0)
    if bits is None:
        return numbers
    one = 1 << (bits - 1)
    return numbers.mul_(one).round_().clamp_(max=one - 1).div_(one)


@lru_cache(maxsize=8)
def energy(seed: int, k: int, bits: int | None) -> tuple[float, ...]:
    """Return the sums of squares of the first 0, 1, ..., 2 N numbers of the pool repeated twice."""
    squares = pool(seed, k, bits).double().square().repeat(2)
    return 0.0, *squares.cumsum(0).tolist()


@cached(8)
def scaled(seed: int, k: int, bits: int | None, norm: float, m: int, rounding: str, device: torch.device) -> Tensor:
    """Return the pool times the (rounded) factor E||g_m|| / norm."""
    factor = torch.tensor(expected_norm(m) / norm, dtype=torch.float64)
    return (pool(seed, k, bits) * round_factor(factor, rounding).float()).to(device)


def cyclic(period: Tensor, start: int, count: int) -> Tensor:
    """Return period[(start + j) mod N] for j = 0 .. count - 1."""
    N = len(period)
    out = torch.empty(count, device=period.device)
    whole = count // N * N
    rolled = period.roll(-start)
    out[:whole].view(-1, N).copy_(rolled)
    out[whole:] = rolled[: count - whole]
    return out
