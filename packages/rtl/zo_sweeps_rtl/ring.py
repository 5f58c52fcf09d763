"""PeZO on the fly: a ring of shift registers whose rotation is free, and the table of its factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from zo_sweeps.engine import lfsr
from zo_sweeps.engine.perturbations.pezo_onthefly import PeZOOnTheFly
from zo_sweeps.engine.pezo import CPU, block_factors, windows
from zo_sweeps_rtl import registers
from zo_sweeps_rtl.circuit import Circuit, SimulatedSteps, controlled, declared, inputs, module, ports, updated

NAME, TABLE = "pezo_ring", "factors.hex"
Factors = Literal["table", "exceptions"]


def ring(
    perturbation: PeZOOnTheFly,
    seed: int,
    parameters: int,
    *,
    factors: Factors = "table",
    replays: bool = False,
    reset: bool = False,
) -> Circuit:
    """Return n registers of b bits in which place i takes the successor of place i + 1.

    At clock C, place i holds register (i + C) mod n: the array of `engine/lfsr.py`, rotated once per clock by wires
    alone. The factor of a clock is a power of two, 2^(shift + least exponent). Its address is one more register
    (`fixed`), or place 0 (`pointer`).

    Args:
        parameters: d, the numbers of a direction.
        factors: `table`: a memory of 2^b entries, as in the paper; `exceptions`: the most frequent factor, and in logic
            the addresses of all others. The numbers are the same.
        replays: whether a copy of the registers at a direction's start allows to draw it again.
    """
    n, b, period = perturbation.registers, perturbation.bits, perturbation.period
    leap = lfsr.leap(b) if perturbation.leap else 1
    states, turned = lfsr.cycle(b, leap), windows(seed, n, b, CPU)
    table, addresses = block_factors(
        seed, n, b, perturbation.leap, perturbation.center, perturbation.address, perturbation.rounding, CPU
    )
    exponents = table[: len(states)].log2().round().long()
    least, most = int(exponents.min()), int(exponents.max())
    shift_bits = (most - least).bit_length()
    length = perturbation.clocks(parameters)

    def expected(schedule: SimulatedSteps) -> tuple[Tensor, Tensor]:
        clock = (schedule.direction * schedule.length + schedule.clock) % period
        state, place = (clock % len(states)).unsqueeze(1), clock % n
        numbers = states[(turned[place] + state) % len(states)].long()
        return numbers, (exponents - least)[(addresses[place] + state) % len(states)].squeeze(1)

    # One clock early: the first step leads to clock 0.
    early = lfsr.read(states.repeat(2), turned, period - 1, 1)[0].tolist()
    controls = inputs(replays, reset)
    start, state_bits = sum(state << (b * i) for i, state in enumerate(early)), n * b
    successor = registers.verilog(registers.power(lfsr.TAPS[b], b, leap), "s")
    body = [
        f"function [{b - 1}:0] successor(input [{b - 1}:0] s);",
        f"  successor = {successor};",
        "endfunction",
        "",
        *_places(n, b, start, controls),
    ]
    files: dict[str, str] = {}
    if shift_bits:
        at = f"next_places[{b - 1}:0]"
        by_state = dict(zip(states.tolist(), (exponents - least).tolist(), strict=True))
        if perturbation.address == "fixed":
            at = "at"
            address = int(states[int(lfsr.phases(seed, n, b)[0])])
            body += _address(b, address, f"seed[{state_bits} +: {b}]", controls)
            start, state_bits = start | address << state_bits, state_bits + b
        if factors == "table":  # no register is ever 0
            files[TABLE] = "".join(f"{by_state.get(state, 0):x}\n" for state in range(1 << b))
        body += _factors(b, shift_bits, by_state, factors, at)
    half = f"2^{b - 1}"
    notes = (
        f"PeZO on the fly: {n} shift registers of {b} bits, taps {', '.join(map(str, lfsr.TAPS[b]))}"
        + (f", {leap} clocks per number" if leap > 1 else "")
        + f", seed {seed}. The first step gives the numbers of clock 0.",
        f"z = (number - {half}) / {half} * factor; complementing the top bit gives two's complement."
        if perturbation.center
        else f"z = number / {half} * factor.",
        f"factor = 2^(shift {'+' if least >= 0 else '-'} {abs(least)})."
        if shift_bits
        else f"factor = 2^{least}, always.",
        *controlled(controls, length),
    )
    return Circuit(
        name=NAME,
        verilog=module(NAME, ports(controls, n * b, state_bits, shift_bits), body, notes),
        lanes=n,
        bits=b,
        length=length,
        expected=expected,
        start=start,
        state_bits=state_bits,
        controls=controls,
        shift_bits=shift_bits,
        files=files,
        notes=notes,
    )


def _places(n: int, b: int, start: int, controls: Sequence[str]) -> list[str]:
    """Return the registers, whose state at the direction's first clock is kept to draw it again."""
    width, replays = n * b, "again" in controls
    return [
        declared("places", width, start, controls),
        *([f"reg [{width - 1}:0] kept;"] if replays else []),
        "// Place i takes the successor of place i + 1: this is the rotation.",
        f"wire [{width - 1}:0] turned;",
        *(f"assign turned[{b * i} +: {b}] = successor(places[{b * ((i + 1) % n)} +: {b}]);" for i in range(n)),
        f"wire [{width - 1}:0] next_places = {'again ? kept : ' if replays else ''}turned;",
        updated("places", "next_places", f"seed[{width - 1}:0]", controls),
        *(["always @(posedge clk) if (step && fresh) kept <= next_places;"] if replays else []),
        "assign numbers = places;",
    ]


def _address(b: int, start: int, seed: str, controls: Sequence[str]) -> list[str]:
    """Return a copy of register 0, one clock ahead of the places, so that the factor arrives with its numbers."""
    replays = "again" in controls
    return [
        "",
        declared("address", b, start, controls),
        *([f"reg [{b - 1}:0] kept_address;"] if replays else []),
        f"wire [{b - 1}:0] at = {'again ? kept_address : ' if replays else ''}address;",
        updated("address", "successor(at)", seed, controls),
        *(["always @(posedge clk) if (step && fresh) kept_address <= at;"] if replays else []),
    ]


def _factors(b: int, shift_bits: int, by_state: Mapping[int, int], factors: Factors, at: str) -> list[str]:
    """Return the output `shift`: the exponent of the state `at`, one clock later."""
    if factors == "table":
        return [
            "",
            f'(* ram_style = "block" *) reg [{shift_bits - 1}:0] factors [0:{(1 << b) - 1}];',
            f'initial $readmemh("{TABLE}", factors);',
            f"always @(posedge clk) if (step) shift <= factors[{at}];",
        ]
    values = list(by_state.values())
    usual = max(sorted(set(values)), key=values.count)
    others = {state: value for state, value in sorted(by_state.items()) if value != usual}
    by_value: dict[int, list[int]] = {}
    for state, value in others.items():
        by_value.setdefault(value, []).append(state)
    return [
        "",
        f"always @(posedge clk) if (step) case ({at})",
        *(f"  {', '.join(map(str, states))}: shift <= {value};" for value, states in by_value.items()),
        f"  default: shift <= {usual};",
        "endcase",
    ]
