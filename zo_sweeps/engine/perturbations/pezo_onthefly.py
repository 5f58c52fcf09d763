"""PeZO, on the fly: an array of linear-feedback shift registers, rotated each clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm

import torch
from torch import Tensor

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.engine import lfsr
from zo_sweeps.engine.modulus import ROUNDINGS, expected_norm, round_factor
from zo_sweeps.engine.types import Layout, NoiseKey

LENGTHS = ("block", "perturbation")
ADDRESSES = ("fixed", "pointer")
CPU = torch.device("cpu")
BLOCK = 1 << 16  # numbers read at once: the indices and values stay in a core's L2 cache


@lru_cache(maxsize=8)
def _values(bits: int, center: bool, device: torch.device) -> Tensor:
    """What each state of the cycle stands for, twice over, [2 P] fp32, exact."""
    half = 1 << (bits - 1)
    return ((lfsr.cycle(bits) - (half if center else 0)).float() / half).repeat(2).to(device)


@lru_cache(maxsize=8)
def _windows(seed: int, n: int, bits: int, device: torch.device) -> Tensor:
    return lfsr.rotations(lfsr.phases(seed, n, bits)).to(device)


@lru_cache(maxsize=8)
def _squares(seed: int, n: int, bits: int, center: bool) -> Tensor:
    """||u||^2 of the n numbers of clock c = 0 .. P-1, [P] fp64; rotation does not change it."""
    squares = _values(bits, center, CPU).double().square()[: (1 << bits) - 1]
    total = torch.zeros_like(squares)
    for phase in lfsr.phases(seed, n, bits).tolist():
        total += squares.roll(-phase)
    return total


@lru_cache(maxsize=8)
def _block_factors(
    seed: int, n: int, bits: int, center: bool, address: str, rounding: str, device: torch.device
) -> tuple[Tensor, Tensor]:
    """([2 P] the factors by what is looked at, [n, 1] the phase of the register that clock c mod n looks at)."""
    phases = lfsr.phases(seed, n, bits)
    factors = round_factor(expected_norm(n) / _squares(seed, n, bits, center).sqrt(), rounding).float()
    # Stored under register 0's output at that clock, which is number phase_0 + c of the cycle.
    table = factors.roll(int(phases[0])).repeat(2)
    looked_at = phases if address == "pointer" else phases[:1].expand(n)
    return table.to(device), looked_at.int().unsqueeze(1).contiguous().to(device)


@lru_cache(maxsize=64)
def _direction_factor(seed: int, n: int, bits: int, center: bool, rounding: str, d: int, clock: int) -> float:
    """E||g_d|| over the norm of the d numbers from `clock` on."""
    squares, P = _squares(seed, n, bits, center), (1 << bits) - 1
    start, full = clock % P, d // n
    total = full // P * squares.sum() + squares.repeat(2)[start : start + full % P].sum()
    if d % n:
        last = lfsr.read(_values(bits, center, CPU), _windows(seed, n, bits, CPU), clock + full, 1)[0, : d % n]
        total += last.double().square().sum()
    return float(round_factor(expected_norm(d) / total.sqrt(), rounding))


@dataclass(frozen=True)
class PeZOOnTheFly:
    """z[c n + i] = s(c) u, with u the number that register (i + C) mod n gives at clock C = C_t + c.

    n = 2^k - 1 registers of b bits give n numbers a clock, in an order rotated by one each clock (see `engine/lfsr.py`
    for the integers). Direction t = (step - 1) q + query of a run starts at clock C_t = t ceil(d / n): the numbers that
    the last clock of a direction has too many are dropped, registers and rotation run on. A direction runs through the
    parameters in the space's order without a break.

    Args:
        k: the array has 2^k - 1 registers. The paper's default is 5 ("32").
        bits: b, 2 to 16. The paper finds 8 enough for RoBERTa and 14 for OPT.
        center: u = (v - 2^(b-1)) / 2^(b-1) of the integer v, zero in the mean over a period; else u = v / 2^(b-1), in
            (0, 2). The paper gives no map from integers to numbers of both signs.
        length: the vector whose modulus is scaled to a Gaussian's (eqs. 3 to 5). `block`: the n numbers of a clock,
            with E||g_n|| "fixed with respect to the number of RNGs" (section 3.2). `perturbation`: all d numbers, one
            factor a direction (the letter of eq. 3).
        address: the register whose output addresses the table of factors, which is filled for the first one's output.
            `fixed`: that one, wherever rotation has put it ("tracks the position of the first RNG"): each clock has its
            own factor. `pointer`: the one in first place, as Figure 2 can be read; its output then finds another
            clock's factor. Without effect for length `perturbation`.
        rounding: factors to the nearest power of two, `linear` or `log` (see `round_factor`), or `none`. The paper
            rounds.

    The numbers are the same bits on every device. Not of independent elements: directions repeat after
    lcm(n, 2^b - 1) clocks, and rounding takes the modulus off by up to a third (2 in place of 1.73 as a rule). Cost:
    a copy, an addition, a look-up and a product a number; memory a few 2^b. Raises UserError when a direction takes a
    whole number of periods, since then all would be the same. Source: PeZO sections 3.1 and 3.2, eqs. 3 to 5.
    """

    k: int = 5
    bits: int = 8
    center: bool = True
    length: str = "block"
    address: str = "fixed"
    rounding: str = "linear"
    layout: Layout | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.k <= 10 or self.bits not in lfsr.TAPS:
            raise ValueError(f"PeZO's array needs 2 <= k <= 10 and 2 <= bits <= 16, got {self.k} and {self.bits}")
        for option, value, choices in (
            ("length", self.length, LENGTHS),
            ("address", self.address, ADDRESSES),
            ("rounding", self.rounding, ROUNDINGS),
        ):
            if value not in choices:
                raise unknown(option, value, choices, where="perturbation pezo_onthefly")

    def bind(self, layout: Layout) -> PeZOOnTheFly:
        n = (1 << self.k) - 1
        if -(-layout.d // n) % lcm(n, (1 << self.bits) - 1) == 0:
            raise UserError(
                f"{layout.d} parameters take a whole number of periods of {n} registers of {self.bits} bits: all "
                "directions would be the same",
                where="perturbation pezo_onthefly",
                fix="another k or bits",
            )
        return replace(self, layout=layout)

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        assert self.layout is not None, "bind the perturbation to the parameters first"
        n, device = (1 << self.k) - 1, torch.device(device)
        start = self.layout.drawn_before(key) * -(-self.layout.d // n)
        offset, count = self.layout.offsets[name], shape.numel()
        first, last = offset // n, -(-(offset + count) // n)
        values = _values(self.bits, self.center, device)
        windows = _windows(key.seed, n, self.bits, device)
        array = (key.seed, n, self.bits, self.center)
        out = torch.empty(last - first, n, device=device)
        rows = BLOCK // n if device.type == "cpu" else max(last - first, 1)
        for row in range(0, last - first, rows):
            block, clock = out[row : row + rows], start + first + row
            numbers = lfsr.read(values, windows, clock, len(block))
            if self.length == "perturbation":
                factor = _direction_factor(*array, self.rounding, self.layout.d, start)
                torch.mul(numbers, factor, out=block)
            else:
                table, looked_at = _block_factors(*array, self.address, self.rounding, device)
                torch.mul(numbers, lfsr.read(table, looked_at, clock, len(block)), out=block)
        return out.view(-1)[offset - first * n :][:count].view(shape)
