"""The test bench of a circuit in plain Verilog: stimulus and expected outputs from a file, compared at every clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from zo_sweeps_rtl.circuit import RESET, Circuit, SimulatedSteps

VECTORS, CHECK, BENCH = "vectors.hex", "check.v", "bench.v"
STALL = 13  # one clock in so many has no step


def vectors(circuit: Circuit, clocks: int) -> str:
    """Return one line of hexadecimal digits per clock, from the top bit on: controls, valid, shift, numbers.

    `clocks` of them are valid, and compared with the engine's; before come those of the latency, and one comes after,
    in which the last is compared. One clock in STALL has no step: outputs must stay. A circuit with a reset has it on
    the first clock, and no step then. A direction that is replayed is cut, so that its passes are reached: a circuit is
    told where one begins, and does not know its length. Cost: n b / 4 characters per clock.
    """
    at, reset = torch.arange(clocks + 2 * circuit.latency + 4), RESET in circuit.controls
    steps = ((at % STALL != STALL - 1) & ((at > 0) | (not reset))).long()
    last = steps.cumsum(0) - 1  # step; -1 before the first
    rows = int((last < circuit.latency).sum()) + clocks + 1
    at, steps, last = at[:rows], steps[:rows], last[:rows]
    index = last.clamp(min=0)
    length = circuit.length if circuit.passes == 1 else min(circuit.length, max(1, clocks // (2 * circuit.passes)))
    schedule = SimulatedSteps.of(int(index[-1]) + 1, length, circuit.passes)
    numbers, shifts = (values.numpy() for values in circuit.expected(schedule))
    by_name = {"step": steps, "fresh": schedule.fresh[index], "again": schedule.again[index], RESET: (at == 0).long()}
    fields = [by_name[name].numpy().reshape(-1, 1) for name in circuit.controls]
    widths = [1] * len(fields)
    fields.append((last >= circuit.latency).long().numpy().reshape(-1, 1))
    widths.append(1)
    if circuit.shift_bits:
        fields.append(shifts[index].reshape(-1, 1))
        widths.append(circuit.shift_bits)
    bits = [_bits(field, width) for field, width in zip(fields, widths, strict=True)]
    bits.append(_bits(numbers[index][:, ::-1], circuit.bits))  # place 0 lowest
    line = np.concatenate(bits, axis=1)
    line = np.pad(line, ((0, 0), (-line.shape[1] % 4, 0)))
    digits = line.reshape(rows, -1, 4) @ np.array([8, 4, 2, 1], dtype=np.uint8)
    text = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)[digits]
    return np.pad(text, ((0, 0), (0, 1)), constant_values=ord("\n")).tobytes().decode()


def _bits(values: np.ndarray, width: int) -> np.ndarray:
    """Return the bits of integers [rows, m], highest first, [rows, m * width] uint8."""
    shifts = np.arange(width - 1, -1, -1)
    return ((values[:, :, None] >> shifts) & 1).astype(np.uint8).reshape(len(values), -1)


def check(circuit: Circuit, rows: int) -> str:
    """Return the module `check`: it drives the circuit through the `rows` clocks of VECTORS and compares outputs."""
    inputs, shift, width = len(circuit.controls), circuit.shift_bits, circuit.width
    total = inputs + 1 + shift + width
    wires = [f".{name}(vector[{total - 1 - i}])" for i, name in enumerate(circuit.controls)]
    wires += [f".seed({circuit.state_bits}'h{circuit.start:x})"] if RESET in circuit.controls else []
    outputs = [".numbers(numbers)", *([".shift(shift)"] if shift else [])]
    seen = "{shift, numbers}" if shift else "numbers"
    return f"""\
// Drives {circuit.name} through {VECTORS} and compares its outputs at every clock: `failed` stays 1 after a difference.
module check (input wire clk, output reg failed, output reg done, output reg [31:0] clock);
  reg [{total - 1}:0] vectors [0:{rows - 1}];
  initial $readmemh("{VECTORS}", vectors);
  initial begin failed = 0; done = 0; clock = 0; end
  wire [{total - 1}:0] vector = vectors[clock];
  reg [{shift + width}:0] expected;
  wire [{width - 1}:0] numbers;
{f"  wire [{shift - 1}:0] shift;" if shift else ""}
  {circuit.name} circuit (.clk(clk), {", ".join([*wires, *outputs])});
  always @(posedge clk) if (!done) begin
    expected <= vector[{shift + width}:0];
    if (clock != 0 && expected[{shift + width}] && {seen} !== expected[{shift + width - 1}:0]) failed <= 1;
    if (clock == {rows - 1}) done <= 1;
    else clock <= clock + 1;
  end
`ifdef FORMAL
  always @* assert (!failed);
`endif
endmodule
"""


def bench(circuit: Circuit, clocks: int) -> str:
    """Return the top of the test bench: a clock, and one line at the end."""
    return f"""\
module bench;
  reg clk;
  initial clk = 0;
  wire failed, done;
  wire [31:0] clock;
  check check (.clk(clk), .failed(failed), .done(done), .clock(clock));
  always #1 clk = ~clk;
  always @(negedge clk) if (failed) begin
    $display("FAILED: {circuit.name} differs from {VECTORS} before clock %0d", clock);
    $finish;
  end else if (done) begin
    $display("PASSED: {circuit.name}, {clocks} clocks");
    $finish;
  end
endmodule
"""


def write(circuit: Circuit, folder: Path, clocks: int) -> list[Path]:
    """Write the circuit, its memory images and its test bench into a folder; return the Verilog files.

    clocks: those whose outputs are compared.
    """
    driven = vectors(circuit, clocks)
    texts = {f"{circuit.name}.v": circuit.verilog, CHECK: check(circuit, driven.count("\n"))}
    texts[BENCH] = bench(circuit, clocks)
    for name, text in {**texts, **circuit.files, VECTORS: driven}.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts]
