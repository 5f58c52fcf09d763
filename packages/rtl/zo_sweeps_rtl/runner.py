"""A circuit: written, simulated against the engine's integers, synthesised, placed and routed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import MadeFile
from zo_sweeps.run.runner import Runner, StoppedError
from zo_sweeps_rtl import tools
from zo_sweeps_rtl.of_perturbation import circuit
from zo_sweeps_rtl.synthesis import Synthesis


class SynthesisRunner(Runner):
    """A trial without steps: its results are counts of cells, a clock, and the files behind them.

    Raises UserError if the tools here are of other versions than those that the trial was planned with.
    """

    def device(self) -> dict[str, Any]:
        return {**super().device(), "runtime": "circuits", "versions": self.config.method.kind.installed_tools()}

    def run(self) -> None:
        kind, recorder = self.config.method.kind, self.recorder
        assert isinstance(kind, Synthesis)
        if (here := tuple(f"{name} {version}" for name, version in kind.installed_tools().items())) != kind.versions:
            what = f"the tools here are {', '.join(here)}, and the trial is of {', '.join(kind.versions)}"
            raise UserError(what, fix="install the same versions on every node")
        made = circuit(self.config.perturbation, self.config.seed, kind)
        for name, text in {f"{made.name}.v": made.verilog, **made.files}.items():
            recorder.emit(MadeFile(name=name, text=text))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            tools.simulated(made, folder, kind.clocks)
            numbers = made.lanes * made.copies
            recorder.measured |= {"clocks_checked": float(kind.clocks), "numbers_per_clock": float(numbers)}
            steps: list[Callable[[], tools.Made]] = [
                lambda: tools.synthesised(made, folder),
                lambda: tools.placed(made, folder, kind.placements),
            ]
            for step in steps:
                if self.should_stop():
                    raise StoppedError
                result = step()
                for name, text in result.files.items():
                    recorder.emit(MadeFile(name=name, text=text))
                recorder.measured |= result.figures
            recorder.measured["luts_per_number"] = recorder.measured["luts"] / numbers
