"""PeZO, pre-generated: a pool of uniform numbers, used again and again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.engine import noise
from zo_sweeps.engine.lfsr import SEED_STEP
from zo_sweeps.engine.modulus import ROUNDINGS, expected_norm, round_factor
from zo_sweeps.engine.types import Layout, NoiseKey

LENGTHS = ("pool", "perturbation")


@lru_cache(maxsize=8)
def _pool(seed: int, k: int) -> Tensor:
    """N = 2^k - 1 numbers of U(-1, 1), [N] fp32 on the CPU."""
    return noise.uniform(NoiseKey(seed, SEED_STEP, 0), "pool", torch.Size([(1 << k) - 1])).mul_(2.0).sub_(1.0)


@lru_cache(maxsize=8)
def _energy(seed: int, k: int) -> tuple[float, ...]:
    """Sums of the squares of the pool's first 0, 1, ..., 2 N numbers, the pool twice over."""
    squares = _pool(seed, k).double().square().repeat(2)
    return 0.0, *squares.cumsum(0).tolist()


@lru_cache(maxsize=8)
def _scaled(seed: int, k: int, norm: float, m: int, rounding: str, device: torch.device) -> Tensor:
    """The pool times E||g_m|| / norm, as it is stored."""
    factor = torch.tensor(expected_norm(m) / norm, dtype=torch.float64)
    return (_pool(seed, k) * round_factor(factor, rounding).float()).to(device)


@dataclass(frozen=True)
class PeZOPool:
    """u_t[j] = s p[(o_t + j) mod N];  o_{t+1} = (o_t + d) mod N, for direction t = (step - 1) q + query, o_0 = 0.

    p ~ U(-1, 1)^N with N = 2^k - 1 is drawn once from the run's seed and never renewed; what a direction leaves over of
    it opens the next, whichever step or query that is. A direction runs through the parameters in the space's order.

    Args:
        k: the pool has 2^k - 1 numbers. The paper's default is 12 ("4096").
        length: the vector whose modulus is scaled to a Gaussian's (eqs. 3 to 5). `pool`: p itself, once, before it is
            stored (the paper's section 3.2 for pre-generation). `perturbation`: u_t, d numbers, anew for each direction
            (the letter of eq. 3).
        rounding: `none`, or s to the nearest power of two (`linear`, `log`: see `round_factor`). The paper rounds the
            factors of the on-the-fly table; of the pool it does not say so. Rounded, the modulus is 1.15 times as much.

    The numbers are the same bits on every device. Not of independent elements: parameters N places apart always move
    alike, all directions lie in N dimensions, and there are N / gcd(N, d) of them; E[z z^T] is near I only over pools,
    and only between places that differ mod N. Cost: a copy; memory N numbers. Raises UserError when N divides d: every
    direction would be the same. Source: PeZO section 3.1, eqs. 3 to 5.
    """

    k: int = 12
    length: str = "pool"
    rounding: str = "none"
    layout: Layout | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.k <= 24:
            raise ValueError(f"PeZO's pool needs 2 <= k <= 24, got {self.k}")
        for option, value, choices in (("length", self.length, LENGTHS), ("rounding", self.rounding, ROUNDINGS)):
            if value not in choices:
                raise unknown(option, value, choices, where="perturbation pezo_pool")

    def bind(self, layout: Layout) -> PeZOPool:
        if layout.d % ((1 << self.k) - 1) == 0:
            raise UserError(
                f"2^{self.k} - 1 divides the number of parameters, {layout.d}: all directions would be the same",
                where="perturbation pezo_pool",
                fix=f"another k, as {self.k - 1 if self.k > 2 else 3}",
            )
        return replace(self, layout=layout)

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        assert self.layout is not None, "bind the perturbation to the parameters first"
        d, N = self.layout.d, (1 << self.k) - 1
        start = self.layout.drawn_before(key) * d % N
        energy = _energy(key.seed, self.k)
        if self.length == "pool":
            m, squares = N, energy[N]
        else:
            m, squares = d, d // N * energy[N] + energy[start + d % N] - energy[start]
        pool = _scaled(key.seed, self.k, squares**0.5, m, self.rounding, torch.device(device))
        return _cyclic(pool, (start + self.layout.offsets[name]) % N, shape.numel()).view(shape)


def _cyclic(period: Tensor, start: int, count: int) -> Tensor:
    """period[(start + j) mod N] for j = 0 .. count - 1."""
    N = len(period)
    out = torch.empty(count, device=period.device)
    whole = count // N * N
    rolled = period.roll(-start)
    out[:whole].view(-1, N).copy_(rolled)
    out[whole:] = rolled[: count - whole]
    return out
