"""The folder of a circuit: sources, test bench, constraints, and a README with its figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zo_sweeps_rtl import simulate
from zo_sweeps_rtl.circuit import RESET, Circuit

PERIOD_NS = 1.428  # of the 700 MHz in PeZO's Table 6
ECP5_MHZ = 600


def write(circuit: Circuit, folder: Path, clocks: int, figures: Mapping[str, float]) -> str:
    """Write the folder; return the text of its README.md.

    Args:
        clocks: of the test bench.
        figures: as the tools gave them, under names of an outcome's metrics.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sources = simulate.write(circuit, folder, clocks)
    (folder / f"{circuit.name}.xdc").write_text(f"create_clock -period {PERIOD_NS} [get_ports clk]\n")
    (folder / f"{circuit.name}.lpf").write_text(f'FREQUENCY PORT "clk" {ECP5_MHZ} MHZ;\n')
    text = _readme(circuit, [path.name for path in sources], clocks, figures)
    (folder / "README.md").write_text(text)
    return text


def _readme(circuit: Circuit, sources: list[str], clocks: int, figures: Mapping[str, float]) -> str:
    files = " ".join(sources)
    notes = "\n".join(f"- {note}" for note in circuit.notes)
    begins = "no reset: the state is an initial value, as in the bitstream of an FPGA"
    if RESET in circuit.controls:
        begins = f"seed of these numbers: {circuit.state_bits}'h{circuit.start:x}"
    copies = f", of {circuit.copies} copies" if circuit.copies > 1 else ""
    return f"""\
# {circuit.name}
{notes}
- ports: clk; {", ".join(circuit.controls)} (inputs); numbers, {circuit.lanes} of {circuit.bits} bits, place 0 lowest\
{f"; shift, {circuit.shift_bits} bits" if circuit.shift_bits else ""}. Without `step` the outputs stay.
- {begins}

| {f"counts{copies}":35} | LUTs | FFs | BRAMs | clock |
|---|---|---|---|---|
| UltraScale+ (yosys, before placement) | {figures["luts"]:.0f} | {figures["ffs"]:.0f} | {figures["brams"]:g} | - |
| ECP5 LFE5U-85F-8 (nextpnr, placed) | {figures["ecp5_luts"]:.0f} | {figures["ecp5_ffs"]:.0f} | \
{figures["ecp5_brams"]:g} | {figures["ecp5_mhz"]:.0f} MHz |

The clock is that of one copy, without pads. Open tools give neither the clock nor the power of an UltraScale+.

Simulate {clocks} clocks against the engine's integers ({simulate.VECTORS}):

    iverilog -o bench {files} && vvp bench
    verilator --binary --timing -Wall -CFLAGS -std=c++20 --top-module bench {files} && obj_dir/Vbench

{circuit.name}.xdc asks Vivado for {1000 / PERIOD_NS:.0f} MHz, {circuit.name}.lpf asks nextpnr-ecp5 for {ECP5_MHZ}.
"""
