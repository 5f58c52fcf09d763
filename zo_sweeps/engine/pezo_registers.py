"""PeZO's array of shift registers, as tensors; the perturbation is `perturbations/pezo_onthefly.py`."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from zo_sweeps.engine import lfsr
from zo_sweeps.engine.cached import cached
from zo_sweeps.engine.modulus import expected_norm, round_factor

CPU = torch.device("cpu")
BLOCK = 1 << 16  # numbers read at once: the indices and values stay in a core's L2 cache


@cached(8)
def values(bits: int, leap: bool, center: bool, device: torch.device) -> Tensor:
    """Return the number that each state of the cycle maps to, repeated twice, [2 P] fp32, exact.

    Args:
        leap: whether a register is clocked `lfsr.leap(bits)` times between outputs; otherwise once.
    """
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
