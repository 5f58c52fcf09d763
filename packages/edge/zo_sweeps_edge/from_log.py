"""A trial that the light client ran somewhere else: its log, as the events and the results of a trial."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any

import torch

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import cache_folder, parse_object, read_lines, read_objects
from zo_sweeps.core.light_client import Away, Line, log_of, scoring
from zo_sweeps.core.memory_parts import MEMORY
from zo_sweeps.core.trial import Sharing
from zo_sweeps.devices.energy import EnergyMeter
from zo_sweeps.devices.peak_memory import MemoryMeter
from zo_sweeps.engine.replay import digest, rebuild
from zo_sweeps.engine.train import Evaluated, StepDone, evaluated_at
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.run.runner import OF_AN_ENGINE, Runner
from zo_sweeps.run.workbench import Workbench
from zo_sweeps.tasks.encode import EncodedExample
from zo_sweeps_edge import agreement, bundle, bundles
from zo_sweeps_edge.phone import SENSORS, Adb, Phone
from zo_sweeps_edge.rows import Frame
from zo_sweeps_edge.scored import scored


class FromLog(Runner):
    """Read a light client's log, step by step; the metrics of a split are computed here, from the scores in it.

    The log is that of `device.log`, or grows while the client runs on a phone, or on a board (`away`).
    """

    _sensors_read = 0  # bytes of the sensors' file

    def __init__(
        self,
        bench: Workbench,
        meter: MemoryMeter,
        should_stop: Callable[[], bool],
        sharing: Sharing | None = None,
        away: Away | None = None,
    ) -> None:
        super().__init__(bench, meter, should_stop, sharing)
        self._away = away
        self._compared: list[tuple[float, float]] = []  # of the first steps; see `agreement.of_step`

    def device(self) -> dict[str, Any]:
        name = self.config.device.name if self._away is None else self._away.profile
        memory = "peak resident memory of the light client's process"
        facts = {"kind": "executorch", "profile": name, "name": "light client", "runtime": "light client"}
        facts |= {"form": self.config.device.form, "delegate": self.config.device.delegate}
        return {**facts, "memory_definition": memory, "versions": {}}

    def energy_meter(self) -> EnergyMeter:
        return EnergyMeter(None, reason="the light client, which runs the steps, reads no energy")

    def load(self) -> None:
        """Return None: the load of the client's machine is not read."""

    def run(self) -> None:
        bench, recorder, splits = self.bench, self.recorder, self.bench.splits
        if self._away is None and self._phone is not None and not recorder.reported:
            self._phone.forget()
        self.frame = Frame.of((*splits.train, *splits.dev, *splits.test), bench.objective.gold_only)
        manifest = self._bundle.manifest
        recorder.measured |= self.config.departures
        recorder.measured["trainable_parameters"] = float(sum(prod(shape) for _, shape in manifest.settings.parameters))
        recorder.measured["program_bytes"] = float(manifest.files[bundle.PROGRAM].bytes)
        if (planned := manifest.config.get("planned_bytes")) is not None:
            recorder.measured["planned_bytes"] = float(planned)
        peak = 0.0
        for line in self.lines():
            with self._reading(line):
                event = self._event(line)
                peak = max(peak, float(line.get("peak_bytes", 0)))
            self._take_readings()
            if event is not None:
                recorder.take(event)
                self.stop_if_asked(event)
        recorder.flush()
        if len(recorder.losses) < self.config.train.steps:
            what = f"the log ends after {len(recorder.losses)} of {self.config.train.steps} steps"
            raise UserError(what, fix="run the light client again: it continues from its log")
        recorder.measured["peak_memory_bytes"] = peak
        recorder.unmeasured[MEMORY] = OF_AN_ENGINE
        best = recorder.best()
        line = self.test_scores(best)
        self._take_readings()
        if self._away is not None:
            recorder.measured |= self._away.measured
        with self._reading(line):
            recorder.measured["peak_memory_bytes"] = max(peak, float(line.get("peak_bytes", 0)))
            weights = self._replayed(line, best)
            self._with(line, splits.test)
            self.report_test(best, weights)

    @contextmanager
    def _reading(self, line: Line) -> Iterator[None]:
        """Raise UserError for a line of another form than the client's."""
        try:
            yield
        except (KeyError, TypeError, ValueError) as error:
            what = f"a line of the light client's log cannot be read ({type(error).__name__}: {error})"
            raise UserError(what, where=f"{self._bundle.log}: {str(line)[:100]}") from error

    def lines(self) -> Iterator[Line]:
        """Yield the log's lines, those that are still to be written included; of a board, the new ones alone."""
        if self._away is not None:
            yield from self._lines_of(self._away)
            return
        yield from read_log(self._bundle.log)
        if self._phone is not None:
            yield from self._phone.run()

    def _lines_of(self, away: Away) -> Iterator[Line]:
        """Yield the lines that the journal lacks, as the client writes them; start it only if there are any."""
        settings, recorder = self._bundle.manifest.settings, self.recorder
        if len(recorder.coefs) < settings.steps or {*settings.evaluations} - {*recorder.evaluations}:
            yield from away.steps(self._bundle, log_of(recorder.coefs, recorder.evaluations))

    def test_scores(self, step: int) -> Line:
        """Return the line with the scores of the test split after a step."""
        if self._away is not None:
            line = self._away.test(self._bundle, log_of(self.recorder.coefs[:step], ()), step)
        else:
            if self._phone is not None and self._test_line(step) is None:
                deque(self._phone.run(*scoring("test", step)), maxlen=0)
            line = self._test_line(step)
        if line is not None and line["type"] == "diverged":
            raise DivergedError(f"non-finite test loss at step {step}, seed {self.config.seed}")
        if line is None:
            fix = f"run zo_client {self._bundle.folder} --score test --at {step}, and read the log again"
            raise UserError(f"the log has no scores of the test split at step {step}, the selected one", fix=fix)
        return line

    def _test_line(self, step: int) -> Line | None:
        """Return the line of the test split at a step, whether it has scores or says that they are not numbers."""
        lines = read_log(self._bundle.log)
        return next((line for line in lines if (line.get("split"), line.get("step")) == ("test", step)), None)

    @cached_property
    def _bundle(self) -> bundle.Bundle:
        """The bundle. Raises UserError if it is damaged or of another trial."""
        trial, log = self.recorder.trial, self.config.device.log
        folder = Path(log).expanduser() if log else cache_folder() / "bundles" / trial.trial_id
        if log is None and not folder.is_dir():
            bundles.write(trial, "", folder)
        read = bundle.read(folder)
        if read.manifest.settings.trial_id != trial.trial_id:
            what = f"the bundle is of trial {read.manifest.settings.trial_id}, not {trial.trial_id}"
            raise UserError(what, where=str(folder), fix="use the version and the files with which it was exported")
        return read

    @cached_property
    def _phone(self) -> Phone | None:
        """The phone that runs the client; None if the client has run."""
        device = self.config.device
        if device.log or device.client is None:
            return None
        client = Path(device.client).expanduser()
        if not client.is_file():
            raise UserError(f"device.client: no file {client}", fix="build it: packages/edge/ANDROID.md says how")
        adb = Adb()
        adb.call("devices")  # raises UserError without adb, before an export that takes minutes
        return Phone(adb, self._bundle.folder, client, should_stop=self.should_stop)

    def _replayed(self, line: Line, step: int) -> str:
        """Return the digest of theta as the log gives it.

        Raises UserError if the client's theta is not the same, to the bit; the form `dual` is not compared.
        """
        bench = self.bench
        space = self._installed()
        try:
            rebuild(bench.method(), space, self.recorder.coefs[:step], bench.rates(), seed=self.config.seed)
            weights, theta = digest(space.params), hashlib.sha256()
            for param in space.params.values():
                theta.update(param.detach().numpy().tobytes())
        finally:
            space.uninstall()
        if not self.config.device.keeps_copies:
            if theta.hexdigest() != line["theta"]:
                raise UserError(f"the parameters of the client after step {step} are not those that its log gives")
            self.recorder.measured["theta_difference"] = 0.0
        return weights

    def _event(self, line: Line) -> StepDone | Evaluated | None:
        """Return a line's event; None if it has none, or the journal has it.

        Raises DivergedError, and UserError for the log of another run, or of a client that computes another function.
        """
        manifest, seed = self._bundle.manifest, self.config.seed
        if line["type"] == "start" and line["settings"] != manifest.files[bundle.SETTINGS].sha256:
            what = f"the log is of another bundle, of trial {line['trial_id']}"
            raise UserError(what, where=str(self._bundle.log), fix="move it away, and copy this bundle's log here")
        if line["type"] == "diverged" and line.get("split") != "test":
            raise DivergedError(f"non-finite loss at step {line['step']}, seed {seed}")
        if line["type"] == "step":
            return self._step(line)
        if line["type"] == "scores" and line["split"] == "dev" and line["step"] in manifest.settings.evaluations:
            step = int(line["step"])
            event = evaluated_at(step, partial(self.bench.score, self._with(line, self.bench.splits.dev)), seed)
            return replace(event, seconds=float(line["seconds"]))
        return None

    def _step(self, line: Line) -> StepDone | None:
        step, log, settings = int(line["step"]), self.recorder.coefs, self._bundle.manifest.settings
        losses, coefs = [*map(float, line["losses"])], tuple(map(float, line["coefs"]))
        if not 1 <= step <= min(len(log) + 1, settings.steps):
            raise UserError(f"the light client's log goes from step {len(log)} of {settings.steps} to step {step}")
        if len(losses) != (expected := 2 * settings.queries):
            what = f"step {step} of the light client's log has {len(losses)} losses instead of {expected}"
            raise UserError(what, where=str(self._bundle.folder))
        if step <= len(log) and coefs != tuple(log[step - 1]):
            what = f"step {step} in the trial's journal is of another run than the light client's log"
            fix = f"--rerun {settings.trial_id} begins the trial anew, from this log"
            raise UserError(what, where=str(self._bundle.log), fix=fix)
        if step <= agreement.STEPS:  # also of an earlier attempt: a client that is refused once is refused again
            self._compare(step, losses)
        if step <= len(log):
            return None
        return StepDone(step, sum(losses) / len(losses), coefs, float(line["seconds"]), int(line["tokens"]))

    def _installed(self) -> InstalledSpace:
        """Install the space at the values at which the program begins."""
        initial = self._bundle.initial
        tensors = None if initial is None else {name: torch.from_numpy(value) for name, value in initial.items()}
        return self.bench.install(tensors)

    def _compare(self, step: int, losses: Sequence[float]) -> None:
        """Compare the client's losses with the engine's. Raises UserError if it computes another function."""
        bench, space = self.bench, self._installed()
        try:
            rebuild(bench.method(), space, self.recorder.coefs[: step - 1], bench.rates(), seed=self.config.seed)
            agreement.of_step(bench, space, step, losses, self._compared)
        finally:
            space.uninstall()

    def _take_readings(self) -> None:
        """Record what a phone's sensors said since the last call; a line that cannot be read is not missed."""
        lines = read_objects(self._bundle.folder / SENSORS, self._sensors_read)
        for reading, self._sensors_read in lines:
            if reading is not None and {"time", "step"} <= {*reading}:
                values = {**reading, **{f"zones/{name}": value for name, value in reading.get("zones", {}).items()}}
                numbers = {name: float(value) for name, value in values.items() if type(value) in (int, float)}
                self.recorder.take_reading(numbers.pop("time"), int(numbers.pop("step")), numbers)

    def _with(self, line: Line, examples: Sequence[EncodedExample]) -> Sequence[EncodedExample]:
        """Score these examples by a line of the log."""
        scores, (rows, _) = [[*map(float, row)] for row in line["scores"]], self._bundle.manifest.splits[line["split"]]
        if len(scores) != rows:
            raise ValueError(f"scores of {len(scores)} rows instead of {rows}")
        self.bench.scorer = partial(scored, lambda rows: scores, self.frame, self.bench.evaluated)
        return examples


def read_log(path: Path) -> Iterator[Line]:
    """Yield the lines of a log, without a last one that is torn; none if there is no log yet.

    Raises UserError for a line that is not a JSON object.
    """
    for number, (text, _) in enumerate(read_lines(path), 1):
        line = parse_object(text)
        if line is None:
            raise UserError("not a log of the light client", where=f"{path}:{number}")
        yield line
