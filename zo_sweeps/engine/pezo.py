"""PeZO's numbers, as tensors: its pool, its array of shift registers, and the modulus that both are scaled to.

Adaptive modulus scaling brings uniform numbers u to a Gaussian vector's expected length (eqs. 3 to 5):

    scaled u = s u,   s = E||g||_2 / ||u||_2,   E||g||_2 = sqrt(2) Gamma((m + 1) / 2) / Gamma(m / 2)

with g ~ N(0, I_m). The members `pezo_pool` and `pezo_onthefly` choose the vector u, and with it the length m: the paper
uses the dimension of the perturbation in eq. 3, the pool's size for the pool, and the number of generators for the
table of factors.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from zo_sweeps.engine import lfsr, noise
from zo_sweeps.engine.noise import cached
from zo_sweeps.methods.points import NoiseKey

CPU = torch.device("cpu")
BLOCK = 1 << 16  # numbers of registers read at once: the indices and values stay in a core's L2 cache


def expected_norm(m: int) -> float:
    """Return E||g||_2 of g ~ N(0, I_m), m >= 1; relative error below 1e-11.

    Eq. 5, exp(log 2 / 2 + lgamma((m + 1) / 2) - lgamma(m / 2)); from m = 10^4 on, where the difference of two large
    logarithms would lose its digits, sqrt(m - 1/2 + 1/(8 m)) (its error is 1/(32 m^3)).
    """
    if m >= 10_000:
        return math.sqrt(m - 0.5 + 0.125 / m)
    return math.exp(0.5 * math.log(2) + math.lgamma((m + 1) / 2) - math.lgamma(m / 2))


def round_factor(factor: Tensor, rounding: str) -> Tensor:
    """Return the factors (> 0) unchanged, or as the nearest power of two, so that scaling is a shift.

    `linear` minimizes |factor - 2^e| (the boundary is 1.5 * 2^e), `log` minimizes |log2 factor - e| (the boundary is
    sqrt(2) * 2^e); the paper only says "nearest". Ties go to the larger power.
    """
    if rounding == "none":
        return factor
    mantissa, exponent = torch.frexp(factor)  # factor = mantissa * 2^exponent, 1/2 <= mantissa < 1
    up = mantissa >= (0.75 if rounding == "linear" else math.sqrt(0.5))
    return torch.ldexp(torch.ones_like(factor), exponent - 1 + up.int())


@cached(8)
def pool(seed: int, k: int, bits: int | None = None) -> Tensor:
    """Return N = 2^k - 1 numbers of U(-1, 1), [N] fp32 on the CPU; `bits`: as fixed-point numbers of so many bits."""
    numbers = noise.uniform(NoiseKey(seed, lfsr.SEED_STEP, 0), "pool", torch.Size([(1 << k) - 1])).mul_(2.0).sub_(1.0)
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
    return (pool(seed, k, bits) * factor(norm, m, rounding)).to(device)


def factor(norm: float, m: int, rounding: str) -> Tensor:
    """Return E||g_m|| / norm, rounded; 0-d, fp32."""
    return round_factor(torch.tensor(expected_norm(m) / norm, dtype=torch.float64), rounding).float()


def cyclic(period: Tensor, start: int, count: int) -> Tensor:
    """Return period[(start + j) mod N] for j = 0 .. count - 1."""
    N = len(period)
    out = torch.empty(count, device=period.device)
    whole = count // N * N
    rolled = period.roll(-start)
    out[:whole].view(-1, N).copy_(rolled)
    out[whole:] = rolled[: count - whole]
    return out


@cached(8)
def values(bits: int, leap: bool, center: bool, device: torch.device) -> Tensor:
    """Return the number that each state of the cycle maps to, repeated twice, [2 P] fp32, exact; see `lfsr.leap`."""
    half = 1 << (bits - 1)
    cycle = lfsr.cycle(bits, lfsr.leap(bits) if leap else 1)
    return ((cycle - (half if center else 0)).float() / half).repeat(2).to(device)


@cached(8)
def windows(seed: int, n: int, bits: int, device: torch.device) -> Tensor:
    """Return the phases in reading order for each clock mod n; see `lfsr.rotations`."""
    return lfsr.rotations(lfsr.phases(seed, n, bits)).to(device)


@cached(8)
def squared_norms(seed: int, n: int, bits: int, leap: bool, center: bool) -> Tensor:
    """Return ||u||^2 of the n numbers at clocks c = 0 .. P-1, [P] fp64; invariant under rotation."""
    squares = values(bits, leap, center, CPU).double().square()[: (1 << bits) - 1]
    total = torch.zeros_like(squares)
    for phase in lfsr.phases(seed, n, bits).tolist():
        total += squares.roll(-phase)
    return total


@cached(8)
def block_factors(
    seed: int, n: int, bits: int, leap: bool, center: bool, address: str, rounding: str, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return ([2 P] factors by address, [n, 1] phase of the register that supplies the address at clock c mod n)."""
    phases = lfsr.phases(seed, n, bits)
    factors = round_factor(expected_norm(n) / squared_norms(seed, n, bits, leap, center).sqrt(), rounding).float()
    # The address is register 0's output at clock c, which is element phase_0 + c of the cycle.
    table = factors.roll(int(phases[0])).repeat(2)
    address_phases = phases if address == "pointer" else phases[:1].expand(n)
    return table.to(device), address_phases.int().unsqueeze(1).contiguous().to(device)


@lru_cache(maxsize=64)
def direction_factor(
    seed: int, n: int, bits: int, leap: bool, center: bool, rounding: str, d: int, clock: int
) -> float:
    """Return E||g_d|| over the norm of the d numbers from `clock` on, rounded."""
    squares, P = squared_norms(seed, n, bits, leap, center), (1 << bits) - 1
    start, full = clock % P, d // n
    total = full // P * squares.sum() + squares.repeat(2)[start : start + full % P].sum()
    if d % n:
        last = lfsr.read(values(bits, leap, center, CPU), windows(seed, n, bits, CPU), clock + full, 1)[0, : d % n]
        total += last.double().square().sum()
    return float(round_factor(expected_norm(d) / total.sqrt(), rounding))
