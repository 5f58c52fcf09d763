"""A generator of random numbers as Verilog, with the integers that it must output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

RESET = "reset"  # a control
PASSES = 3  # over a direction that is replayed: theta + eps z, theta - eps z, and the update


@dataclass(frozen=True)
class SimulatedSteps:
    """The steps of a simulation over directions t = 0, 1, ... of equal length, each drawn `passes` times in a row.

    Args, [steps] int64 each:
        direction: t. clock: c within the direction.
        fresh, again: 1 at the first step of a new direction; at the first step of another pass over the same one.
    length: clocks of a direction.
    """

    direction: Tensor
    clock: Tensor
    fresh: Tensor
    again: Tensor
    length: int

    @classmethod
    def of(cls, steps: int, length: int, passes: int = 1) -> SimulatedSteps:
        """Return the first `steps` steps over directions of `length` clocks."""
        step = torch.arange(steps)
        turn, clock = step // length, step % length
        first, repeated = clock == 0, turn % passes > 0
        return cls(turn // passes, clock, (first & ~repeated).long(), (first & repeated).long(), length)


Expected = Callable[[SimulatedSteps], "tuple[Tensor, Tensor]"]


@dataclass(frozen=True)
class Circuit:
    """A synchronous generator: on a clock with `step`, its outputs become the next numbers; otherwise they stay.

    Ports: clk, the controls, `numbers` (place i in bits b i + b - 1 .. b i) and, if it has any width, `shift`. With
    `reset` among the controls also `seed`, which its state becomes on a clock with `reset`: a chip other than an FPGA
    has no initial values.

    Args:
        name: of the top module.
        verilog: the source of all its modules.
        lanes, bits: n numbers per clock, of b bits.
        length: clocks per direction.
        expected: schedule -> (numbers [steps, lanes], shifts [steps]), int64: the outputs after each step, from the
            engine's integers. Those before `latency` steps do not count.
        controls: the inputs besides the clock: step, and, where it has them, `fresh` and `again`, as in Schedule, and
            `reset`.
        start, state_bits: the state that leads to the first numbers, and its width.
        shift_bits: width of `shift`; 0 for none.
        files: name -> text of the memory images that it reads.
        latency: steps before the first valid number.
        copies: how many of it stand side by side.
        notes: what a reader of the source must know, one line each.
    """

    name: str
    verilog: str
    lanes: int
    bits: int
    length: int
    expected: Expected
    start: int
    state_bits: int
    controls: tuple[str, ...] = ("step",)
    shift_bits: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    latency: int = 0
    copies: int = 1
    notes: tuple[str, ...] = ()

    @property
    def passes(self) -> int:
        """How often a simulation draws each direction."""
        return PASSES if "again" in self.controls else 1

    @property
    def width(self) -> int:
        """Bits of `numbers`."""
        return self.lanes * self.bits


def module(name: str, circuit_ports: Sequence[str], body: Sequence[str], notes: Sequence[str]) -> str:
    """Return the source of a module: its notes as comments, its ports, its body."""
    lines = [f"// {note}" for note in notes]
    lines += [f"module {name} (", ",\n".join(f"  {port}" for port in circuit_ports), ");"]
    return "\n".join([*lines, *(f"  {line}" if line else "" for line in body), "endmodule", ""])


def ports(controls: Sequence[str], width: int, state_bits: int, shift_bits: int = 0) -> list[str]:
    """Return the ports of a generator."""
    listed = [f"input  wire {name}" for name in ("clk", *controls)]
    listed += [f"input  wire [{state_bits - 1}:0] seed"] if RESET in controls else []
    listed += [f"output wire [{width - 1}:0] numbers"]
    return [*listed, *([f"output reg  [{shift_bits - 1}:0] shift"] if shift_bits else [])]


def inputs(replays: bool, reset: bool, *, fresh: bool = False) -> tuple[str, ...]:
    """Return the controls of a generator; `fresh`: it has to know where a direction begins, even without `replays`."""
    return ("step", *(("fresh", "again") if replays else ("fresh",) if fresh else ()), *((RESET,) if reset else ()))


def declared(name: str, width: int, start: int, controls: Sequence[str]) -> str:
    """Return the declaration of a register of the state, with its initial value unless there is a reset."""
    initial = "" if RESET in controls else f" initial {name} = {width}'h{start:x};"
    return f"reg [{width - 1}:0] {name};{initial}"


def updated(name: str, after: str, seed: str, controls: Sequence[str], when: str = "step") -> str:
    """Return the statement that moves a register of the state to `after`, or to `seed` on a reset."""
    reset = f"if (reset) {name} <= {seed}; else " if RESET in controls else ""
    return f"always @(posedge clk) {reset}if ({when}) {name} <= {after};"


def controlled(controls: Sequence[str], length: int) -> list[str]:
    """Return the notes on the inputs that tell the circuit where directions begin."""
    lines = {
        "fresh": f"fresh = 1 with the first step of a direction, which has {length} clocks.",
        "again": "again = 1 with the first step of a repetition of the same direction.",
        RESET: "reset = 1 sets the state to `seed`; the seed of these numbers is in the README.",
    }
    return [line for name, line in lines.items() if name in controls]
