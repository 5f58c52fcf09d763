"""PeZO, pre-generated: a pool in memory, whose address runs through a shift register and jumps over the left-overs."""

from __future__ import annotations

import torch
from torch import Tensor

from zo_sweeps.engine import lfsr
from zo_sweeps.engine.perturbations.pezo_pool import PeZOPool
from zo_sweeps.engine.pezo import expected_norm, round_factor
from zo_sweeps.engine.pezo import pool as numbers_of
from zo_sweeps.methods.perturbation import advance
from zo_sweeps_rtl import registers
from zo_sweeps_rtl.circuit import Circuit, SimulatedSteps, controlled, declared, inputs, module, ports, updated

NAME = "pezo_pool"
BANK = """\
// verilator lint_off DECLFILENAME
module pezo_bank #(parameter FILE = "bank0.hex") (
  input wire clk, input wire step, input wire [{address}:0] address, output reg [{number}:0] number
);
  (* ram_style = "block" *) reg [{number}:0] numbers [0:{last}];
  initial $readmemh(FILE, numbers);
  always @(posedge clk) if (step) number <= numbers[address];
endmodule
"""


def pool(
    perturbation: PeZOPool,
    seed: int,
    parameters: int,
    *,
    lanes: int = 8,
    replays: bool = False,
    reset: bool = False,
) -> Circuit:
    """Return w banks of memory that share one address, and give w numbers of the pool per clock.

    Row r of bank j holds p[(w r + j) mod N], for all N = 2^k - 1 rows: w is a power of two and so has an inverse mod N,
    and every offset o is a row, o / w mod N. A direction may start at any offset without a network that turns the
    numbers. The rows are addressed by the states of a k-bit shift register, which has N of them: the next row is one
    xor away. A jump over a fixed number of rows, to the left-overs of a direction, is a linear map of the state.

    Args:
        parameters: d, the numbers of a direction.
        lanes: w. replays: whether the first address of a direction is kept, to draw it again.
    """
    k, N, b = perturbation.k, perturbation.size, perturbation.stored_bits
    assert b is not None, "a circuit stores fixed-point numbers"
    integers = (numbers_of(seed, k, b).double() * (1 << (b - 1))).round().long()
    norm = numbers_of(seed, k, b).double().norm()
    exponent = int(round_factor(expected_norm(N) / norm, perturbation.rounding).log2().round())
    distance = advance(perturbation.advance, parameters, N)
    rows = -(-parameters // lanes)
    onward = distance * pow(lanes, -1, N) % N  # rows from one direction's first to the next one's

    def expected(schedule: SimulatedSteps) -> tuple[Tensor, Tensor]:
        first = schedule.direction * (distance % N) % N + lanes * (schedule.clock % N)
        index = (first.unsqueeze(1) + torch.arange(lanes)) % N
        return integers[index] & ((1 << b) - 1), torch.zeros(len(index), dtype=torch.long)

    jump = onward if replays else (onward - rows) % N  # without `first`, the address has moved on by `rows`
    controls = inputs(replays, reset, fresh=bool(jump))
    start = _start(k, jump)
    notes = (
        f"PeZO, pre-generated: a pool of {N} numbers of {b} bits, seed {seed}, {lanes} per clock.",
        f"z = number / 2^{b - 1} * 2^{exponent}; a number is in two's complement.",
        *controlled(controls, rows),
    )
    body = [
        *_address(k, jump, start, controls),
        *(
            f'pezo_bank #(.FILE("bank{j}.hex")) bank{j} (.clk(clk), .step(step), .address(at), '
            f".number(numbers[{b * j} +: {b}]));"
            for j in range(lanes)
        ),
    ]
    bank = BANK.format(address=k - 1, number=b - 1, last=(1 << k) - 1)
    return Circuit(
        name=NAME,
        verilog=module(NAME, ports(controls, lanes * b, k), body, notes) + "\n" + bank,
        lanes=lanes,
        bits=b,
        length=rows,
        expected=expected,
        start=start,
        state_bits=k,
        controls=controls,
        files={f"bank{j}.hex": _image(integers.roll(-j), k, b, lanes) for j in range(lanes)},
        notes=notes,
    )


def _start(k: int, jump: int) -> int:
    """Return the state from which the first jump leads to row 0."""
    states = lfsr.cycle(k)
    return int(states[-jump % len(states)])


def _address(k: int, jump: int, start: int, controls: tuple[str, ...]) -> list[str]:
    """Return the shift register whose states are the rows' addresses, in the order of the rows.

    Args:
        jump: rows from `row`, or where a direction is replayed from `first`, to the first of the next direction.
    """
    taps, replays, at = lfsr.TAPS[k], "again" in controls, "row"
    lines = [declared(name, k, start, controls) for name in ("row", *(("first",) if replays else ()))]
    if "fresh" in controls:
        leap = registers.verilog(registers.power(taps, k, jump), "first" if replays else "row")
        lines += ["// The left-overs: a direction starts where the previous one stopped."]
        lines += [f"wire [{k - 1}:0] jumped = {leap};"]
        at = f"{'again ? first : ' if replays else ''}fresh ? jumped : row"
    lines += [
        f"wire [{k - 1}:0] at = {at};",
        updated("row", registers.verilog(registers.power(taps, k, 1), "at"), "seed", controls),
    ]
    return [*lines, updated("first", "at", "seed", controls, "step && fresh")] if replays else lines


def _image(numbers: Tensor, k: int, b: int, lanes: int) -> str:
    """Return a bank's memory: the number of row r, numbers[w r mod N], at the address of row r."""
    rows = (numbers[lanes * torch.arange(len(numbers)) % len(numbers)] & ((1 << b) - 1)).tolist()
    by_state = dict(zip(lfsr.cycle(k).tolist(), rows, strict=True))
    return "".join(f"{by_state.get(state, 0):x}\n" for state in range(1 << k))  # no state is 0
