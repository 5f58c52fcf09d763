"""Generators of Gaussian numbers, as in the baseline of PeZO's Table 6: a tree of comparisons, and a sum of numbers.

Both take their bits from a shift register of 63 bits (x^63 + x^62 + 1) that is clocked 57 or 32 times per number, so
that no bit is used twice at one level or in one sum: each new bit is the xor of two old ones. Both counts of clocks
share no factor with 2^63 - 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from zo_sweeps_rtl import registers
from zo_sweeps_rtl.circuit import (
    Circuit,
    Expected,
    SimulatedSteps,
    controlled,
    declared,
    inputs,
    module,
    ports,
    updated,
)

STATE_BITS, TAPS = 63, (63, 62)
WORD = 8  # bits of a uniform number
LEVELS = 7  # of the tree, below the sign
RANGE = 4.0  # standard deviations on each side of 0
TERMS = 4  # of a sum
SPREAD = 0x9E3779B97F4A7C15  # an odd constant: neighbouring seeds give distant states


def tree(seed: int, copies: int, parameters: int = 1, *, replays: bool = False, reset: bool = False) -> Circuit:
    """Return a generator of 8-bit Gaussian numbers: a walk down a binary tree, one level per stage of its pipeline.

    A fair bit is the sign. At level j = 1 .. 7 the walk enters the outer half of its interval of |x| if a new 8-bit
    number is below 256 P(outer half | interval), rounded: constants, by the position so far. It is built in the manner
    of TreeGRNG (Crols et al., DATE 2024), which the paper takes; that circuit is not public, and the widths, the bits'
    source and the pipeline are ours.

    Args:
        copies: how many stand side by side, each with a seed of its own.
        parameters: d, the numbers of a direction, of all copies.
        replays: whether a copy of the state at a direction's start allows to draw it again.
    """
    clocks, length = 1 + WORD * LEVELS, _length(parameters, copies, replays)

    def expected(schedule: SimulatedSteps) -> tuple[Tensor, Tensor]:
        states = _states(seed, clocks, schedule)
        path = torch.zeros_like(states)
        for level in range(LEVELS):
            word = states.roll(LEVELS - level) >> (WORD * level) & 255  # the first level saw the state 7 clocks ago
            path = 2 * path + (word < torch.tensor(_thresholds(level))[path]).long()
        sign = states >> (clocks - 1) & 1
        return torch.where(sign == 1, 128 + path, 127 - path).unsqueeze(1), torch.zeros_like(states)

    controls = inputs(replays, reset)
    body, at = _source(seed, clocks, controls)
    for level in range(LEVELS):
        body += ["", *_level(level + 1, _thresholds(level), at)]
    body += [
        "",
        f"reg [{LEVELS}:0] number;",
        f"wire sign = {at}[{clocks - 1}];",
        f"always @(posedge clk) if (step) number <= {{sign, sign ? path{LEVELS} : ~path{LEVELS}}};",
        "assign numbers = number;",
    ]
    scale = f"{2 * RANGE:g} / 256"
    meaning = f"(number - 127.5) * {scale}"
    return _circuit("gaussian_tree", seed, copies, length, controls, 1 + LEVELS, LEVELS, expected, body, meaning)


def clt(seed: int, copies: int, parameters: int = 1, *, replays: bool = False, reset: bool = False) -> Circuit:
    """Return a generator of 10-bit numbers: the sum of four uniform 8-bit ones, near Gaussian by the central limit.

    Arguments as for `tree`.
    """
    clocks, length = WORD * TERMS, _length(parameters, copies, replays)

    def expected(schedule: SimulatedSteps) -> tuple[Tensor, Tensor]:
        states = _states(seed, clocks, schedule).roll(1)  # the state one clock ago
        terms = [states >> (WORD * i) & 255 for i in range(TERMS)]
        return torch.stack(terms).sum(0).unsqueeze(1), torch.zeros_like(states)

    controls = inputs(replays, reset)
    source, at = _source(seed, clocks, controls)
    body = [
        *source,
        "",
        f"reg [{WORD}:0] low, high;",
        f"reg [{WORD + 1}:0] number;",
        "always @(posedge clk) if (step) begin",
        f"  low <= {at}[0 +: {WORD}] + {at}[{WORD} +: {WORD}];",
        f"  high <= {at}[{2 * WORD} +: {WORD}] + {at}[{3 * WORD} +: {WORD}];",
        "  number <= low + high;",
        "end",
        "assign numbers = number;",
    ]
    spread = math.sqrt(TERMS * (4.0**WORD - 1) / 12)
    meaning = f"(number - {TERMS * 127.5:g}) / {spread:.2f}"
    return _circuit("gaussian_clt", seed, copies, length, controls, WORD + 2, 1, expected, body, meaning)


def _length(parameters: int, copies: int, replays: bool) -> int:
    """Return the clocks of a direction; without replay one is as good as another."""
    return -(-parameters // copies) if replays else 1


def _circuit(
    name: str,
    seed: int,
    copies: int,
    length: int,
    controls: tuple[str, ...],
    bits: int,
    latency: int,
    expected: Expected,
    body: Sequence[str],
    meaning: str,
) -> Circuit:
    notes = (
        f"A generator of Gaussian numbers, the first after {latency + 1} steps: x = {meaning}.",
        f"{copies} of them stand side by side, each with another state at the start.",
        *controlled(controls, length),
    )
    return Circuit(
        name=name,
        verilog=module(name, ports(controls, bits, STATE_BITS), body, notes),
        lanes=1,
        bits=bits,
        length=length,
        expected=expected,
        start=_start(seed),
        state_bits=STATE_BITS,
        controls=controls,
        latency=latency,
        copies=copies,
        notes=notes,
    )


def _source(seed: int, clocks: int, controls: Sequence[str]) -> tuple[list[str], str]:
    """Return the shift register, whose lowest `clocks` bits are new at every step, and the name of what it holds."""
    replays = "again" in controls
    at = "at" if replays else "state"
    after = registers.verilog(registers.power(TAPS, STATE_BITS, clocks), at)
    lines = [declared("state", STATE_BITS, _start(seed), controls)]
    if replays:
        lines += [f"reg [{STATE_BITS - 1}:0] kept;", f"wire [{STATE_BITS - 1}:0] at = again ? kept : state;"]
        lines += ["always @(posedge clk) if (step && fresh) kept <= at;"]
    return [*lines, updated("state", after, "seed", controls)], at


def _start(seed: int) -> int:
    return 1 + (seed + 1) * SPREAD % ((1 << STATE_BITS) - 1)


def _states(seed: int, clocks: int, schedule: SimulatedSteps) -> Tensor:
    """Return the state that each step uses, [steps] int64."""
    index = schedule.direction * schedule.length + schedule.clock
    leap, states = registers.power(TAPS, STATE_BITS, clocks), [_start(seed)]
    while len(states) <= int(index.max()):
        states.append(registers.image(leap, states[-1]))
    return torch.tensor(states, dtype=torch.int64)[index]


def _level(level: int, thresholds: Sequence[int], at: str) -> list[str]:
    """Return a stage of the tree: `path` is the position among the 2^level intervals of |x|."""
    word, path = f"{at}[{WORD * (level - 1)} +: {WORD}]", f"path{level - 1}"
    if level == 1:
        return ["reg path1;", f"always @(posedge clk) if (step) path1 <= {word} < {thresholds[0]};"]
    return [
        f"reg [{WORD - 1}:0] threshold{level};",
        f"always @* case ({path})",
        *(f"  {position}: threshold{level} = {value};" for position, value in enumerate(thresholds)),
        "endcase",
        f"reg [{level - 1}:0] path{level};",
        f"always @(posedge clk) if (step) path{level} <= {{{path}, {word} < threshold{level}}};",
    ]


def _thresholds(level: int) -> list[int]:
    """Return 256 P(|x| in the outer half | in its interval) for the 2^level intervals of [0, RANGE), rounded."""
    width = RANGE / (1 << level)
    tail = [math.erf(width / 2 * i / math.sqrt(2)) for i in range(2 * (1 << level) + 1)]
    shares = [(tail[2 * i + 2] - tail[2 * i + 1]) / (tail[2 * i + 2] - tail[2 * i]) for i in range(1 << level)]
    return [round(256 * share) for share in shares]
