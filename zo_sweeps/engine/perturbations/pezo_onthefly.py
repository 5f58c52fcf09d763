"""PeZO, on the fly: an array of linear-feedback shift registers, rotated each clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm
from typing import TYPE_CHECKING, Literal

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.definition import bound, option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Layout, NoiseKey

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Rounding = Literal["none", "linear", "log"]


@dataclass(frozen=True)
class PeZOOnTheFly(Perturbation):
    """z[c n + i] = s(c) u, with u the output of register (i + C) mod n at clock C = C_t + c.

    n = 2^k - 1 registers of b bits give n numbers per clock, in an order rotated by one each clock (see
    `engine/lfsr.py` for the integers). Direction t = (step - 1) q + query of a run starts at clock C_t = t ceil(d / n):
    surplus numbers of a direction's last clock are discarded; registers and rotation continue. A direction covers the
    parameters contiguously, in the space's order.

    Args:
        k: the array has 2^k - 1 registers. The paper's default is 5 ("32").
        bits: b, 2 to 16. The paper finds 8 enough for RoBERTa and 14 for OPT.
        center: u = (v - 2^(b-1)) / 2^(b-1) for the integer v, with zero mean over a period; otherwise u = v / 2^(b-1),
            in (0, 2). The paper gives no map from integers to signed numbers.
        length: the vector whose modulus is scaled to a Gaussian's (eqs. 3 to 5). `block`: the n numbers of a clock,
            with E||g_n|| "fixed with respect to the number of RNGs" (section 3.2). `perturbation`: all d numbers, one
            factor per direction (the letter of eq. 3).
        address: the register whose output addresses the table of factors; the table is indexed by the first register's
            output. `fixed`: the first register, wherever rotation has moved it ("tracks the position of the first
            RNG"), so that each clock has its own factor. `pointer`: the register in first position, a possible reading
            of Figure 2; its output then selects another clock's factor. No effect for length `perturbation`.
        rounding: of factors to the nearest power of two: `linear` or `log` (see `round_factor`), or `none`. The paper
            rounds.

    Bit-identical on every device. Elements are not independent: directions repeat after lcm(n, 2^b - 1) clocks, and
    rounding changes the modulus by up to a third (typically 2 instead of 1.73). Cost per number: a copy, an addition, a
    look-up and a product; memory: a few 2^b. Raises UserError if a direction takes a whole number of periods, because
    all directions would then be equal. Source: PeZO sections 3.1 and 3.2, eqs. 3 to 5.
    """

    k: int = option(5, "the array has 2^k - 1 registers", least=2, most=10)
    bits: int = option(8, "bits of a register", least=2, most=16)
    center: bool = option(True, "signed numbers, with zero mean over a period")
    length: Literal["block", "perturbation"] = option("block", "the vector that is scaled to a Gaussian's modulus")
    address: Literal["fixed", "pointer"] = option("fixed", "the register that addresses the table of factors")
    rounding: Rounding = option("linear", "how the factors are rounded to powers of two")
    layout: Layout | None = bound()

    def bind(self, layout: Layout) -> PeZOOnTheFly:
        n = (1 << self.k) - 1
        if -(-layout.d // n) % lcm(n, (1 << self.bits) - 1) == 0:
            raise UserError(
                f"{layout.d} parameters take a whole number of periods of {n} registers of {self.bits} bits: all "
                "directions would be the same",
                where="perturbation pezo_onthefly",
                fix="choose another k or bits",
            )
        return replace(self, layout=layout)

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        import torch

        from zo_sweeps.engine import lfsr
        from zo_sweeps.engine.pezo_registers import BLOCK, block_factors, direction_factor, values, windows

        assert self.layout is not None, "bind the perturbation to the parameters first"
        n, device = (1 << self.k) - 1, torch.device(device)
        start = self.layout.drawn_before(key) * -(-self.layout.d // n)
        offset, count = self.layout.offsets[name], shape.numel()
        first, last = offset // n, -(-(offset + count) // n)
        table_of_values = values(self.bits, self.center, device)
        rotations = windows(key.seed, n, self.bits, device)
        array = (key.seed, n, self.bits, self.center)
        out = torch.empty(last - first, n, device=device)
        rows = BLOCK // n if device.type == "cpu" else max(last - first, 1)
        for row in range(0, last - first, rows):
            block, clock = out[row : row + rows], start + first + row
            numbers = lfsr.read(table_of_values, rotations, clock, len(block))
            if self.length == "perturbation":
                factor = direction_factor(*array, self.rounding, self.layout.d, start)
                torch.mul(numbers, factor, out=block)
            else:
                table, addresses = block_factors(*array, self.address, self.rounding, device)
                torch.mul(numbers, lfsr.read(table, addresses, clock, len(block)), out=block)
        return out.view(-1)[offset - first * n :][:count].view(shape)
