"""PeZO, on the fly: an array of linear-feedback shift registers, rotated each clock."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Literal

from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.later import Tensor, lfsr, pezo, torch
from zo_sweeps.engine.perturbations._bases import Whole
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Advance, Perturbation, advance, starts
from zo_sweeps.methods.points import Layout, NoiseKey


@dataclass(frozen=True)
class PeZOOnTheFly(Whole):
    """z[c n + i] = s(c) u, with u the output of register (i + C) mod n at clock C = C_t + c.

    n = 2^k - 1 registers of b bits give n numbers per clock, in an order rotated by one each clock (see
    `engine/lfsr.py`). Direction t = (step - 1) q + query of a run starts at clock C_t = t a: surplus numbers of a
    direction's last clock are discarded; registers and rotation continue. A direction covers the parameters
    contiguously, in the space's order.

    Args:
        k: the paper's default is 5 ("32").
        bits: b. The paper finds 8 enough for RoBERTa and 14 for OPT.
        center: u = (v - 2^(b-1)) / 2^(b-1) for the integer v; otherwise u = v / 2^(b-1), in (0, 2). The paper gives no
            map from integers to signed numbers.
        length: the vector whose modulus is scaled to a Gaussian's (eqs. 3 to 5). `block`: the n numbers of a clock
            (section 3.2). `perturbation`: all d numbers, one factor per direction (the letter of eq. 3).
        address: the register whose output addresses the table of factors, which is indexed by the first register's
            output. `fixed`: the first register, wherever rotation has moved it, so that each clock has its own factor.
            `pointer`: the register in first position, a possible reading of Figure 2; its output then selects another
            clock's factor. No effect for length `perturbation`.
        rounding: see `round_factor`. The paper rounds.
        advance: `leftover`: a = ceil(d / n), the next clock (the paper). `coprime`: a is the next number from ceil(d /
            n) on that shares no factor with lcm(n, 2^b - 1).
        leap: whether a register is clocked L times between two of its numbers, L the least number from b on that is
            coprime to 2^b - 1, so that they share no bit; otherwise once, as drawn in the paper.

    The array repeats after lcm(n, 2^b - 1) clocks (less only where the seeds of an array with 2^b - 1 <= n repeat
    themselves), and a direction depends on C_t mod that number alone: a run has lcm / gcd(lcm, a) directions, far fewer
    than its steps where the two share factors (7 for Llama3-1B and k = 3), and lcm with `coprime`.

    Without `leap`, E[z z^T] is not I: numbers n - 1 places apart correlate by 0.47, 2 (n - 1) apart by 0.22, 3 (n - 1)
    apart by 0.10. For a gradient without such structure E[ghat] therefore has 1.25 times the length, at a cosine of
    0.80 to the gradient, where d takes many clocks of a period, and 1.1 times, at 0.9, for d of two clocks; the
    rounding of factors lengthens it by another 1.3. Rounding changes the modulus by up to a third (typically 2 instead
    of 1.73).

    Bit-identical on every device. Cost per number: a copy, an addition, a look-up and a product; memory: a few 2^b.
    Raises UserError if a direction takes a whole number of periods, because all directions would then be equal. Source:
    PeZO sections 3.1 and 3.2, eqs. 3 to 5.
    """

    k: int = option(5, "the array has 2^k - 1 registers", least=2, most=10)
    bits: int = option(8, "bits of a register", least=2, most=16)
    center: bool = option(True, "signed numbers, with zero mean over a period")
    length: Literal["block", "perturbation"] = option("block", "the vector that is scaled to a Gaussian's modulus")
    address: Literal["fixed", "pointer"] = option("fixed", "the register that addresses the table of factors")
    rounding: Literal["none", "linear", "log"] = option("linear", "how the factors are rounded to powers of two")
    advance: Advance = option("leftover", "where the next direction starts: next clock, or so that none repeats")
    leap: bool = option(False, "clock a register as often between numbers as they share bits")

    @property
    def registers(self) -> int:
        """n, the numbers per clock."""
        return (1 << self.k) - 1

    @property
    def period(self) -> int:
        """Clocks after which the array repeats."""
        return lcm(self.registers, (1 << self.bits) - 1)

    def clocks(self, d: int) -> int:
        """Return a, the clocks from one direction's start to the next."""
        return advance(self.advance, -(-d // self.registers), self.period)

    def directions(self, d: int) -> int:
        return starts(self.clocks(d), self.period)

    def second_moment(self, shape: torch.Size) -> float | None:
        m = self.registers if self.length == "block" else self.layout.d
        return pezo.expected_norm(m) ** 2 / m if self.leap and self.rounding == "none" else None

    def bind(self, layout: Layout) -> Perturbation:
        if self.directions(layout.d) == 1:
            raise UserError(
                f"{layout.d} parameters take a whole number of periods of {self.registers} registers of {self.bits} "
                "bits: all directions would be the same",
                where="perturbation pezo_onthefly",
                fix="set perturbation.advance=coprime or choose another k",
            )
        return super().bind(layout)

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        n, device = self.registers, torch.device(device)
        start = self.layout.drawn_before(key) * self.stride
        offset, count = self.layout.offsets[name], shape.numel()
        first, last = offset // n, -(-(offset + count) // n)
        table_of_values, rotations, table, addresses = self.tables(key.seed, device)
        out = torch.empty(last - first, n, device=device)
        rows = pezo.BLOCK // n if device.type == "cpu" else max(last - first, 1)
        for row in range(0, last - first, rows):
            block, clock = out[row : row + rows], start + first + row
            numbers = lfsr.read(table_of_values, rotations, clock, len(block))
            if self.length == "perturbation":
                array = (key.seed, n, self.bits, self.leap, self.center)
                factor = pezo.direction_factor(*array, self.rounding, self.layout.d, start)
                torch.mul(numbers, factor, out=block)
            else:
                torch.mul(numbers, lfsr.read(table, addresses, clock, len(block)), out=block)
        return out.view(-1)[offset - first * n :][:count].view(shape)

    @property
    def stride(self) -> int:
        """a, the clocks from one direction's start to the next."""
        return self.clocks(self.layout.d)

    def tables(self, seed: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return `pezo.values`, `pezo.windows` and the two of `pezo.block_factors`."""
        n, numbers = self.registers, (self.bits, self.leap, self.center)
        windows = pezo.windows(seed, n, self.bits, device)
        factors = pezo.block_factors(seed, n, *numbers, self.address, self.rounding, device)
        return pezo.values(*numbers, device), windows, *factors
