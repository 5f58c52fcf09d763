"""A trial that the light client ran somewhere else: its log, as the events and the results of a trial."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
        self._first: dict[int, list[float]] = {}  # step -> losses

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
        self.frame = Frame.of((*splits.train, *splits.dev, *splits.test), bench.objective.gold_only)
        manifest = self._bundle.manifest
        recorder.measured |= self.config.departures
        recorder.measured["trainable_parameters"] = float(sum(prod(shape) for _, shape in manifest.settings.parameters))
        recorder.measured["program_bytes"] = float(manifest.files[bundle.PROGRAM].bytes)
        if (planned := manifest.config.get("planned_bytes")) is not None:
            recorder.measured["planned_bytes"] = float(planned)
        peak = 0.0
        for line in self.lines():
            if line["type"] == "step":
                self._take(line)
            elif line["type"] == "scores" and line["split"] == "dev":
                step = int(line["step"])
                event = evaluated_at(step, partial(bench.score, self._with(line, splits.dev)), self.config.seed)
                recorder.take(Evaluated(step, event.loss, event.metric, event.metrics, float(line["seconds"])))
            elif line["type"] == "diverged" and line.get("split") != "test":
                recorder.flush()
                raise DivergedError(f"non-finite loss at step {line['step']}, seed {self.config.seed}")
            peak = max(peak, float(line.get("peak_bytes", 0)))
            self._take_readings()
        recorder.flush()
        if len(recorder.losses) < self.config.train.steps:
            what = f"the log ends after {len(recorder.losses)} of {self.config.train.steps} steps"
            raise UserError(what, fix="run the light client again: it continues from its log")
        recorder.measured["peak_memory_bytes"] = peak
        recorder.unmeasured[MEMORY] = OF_AN_ENGINE
        best = recorder.best()
        line = self.test_scores(best)
        recorder.measured["peak_memory_bytes"] = max(peak, float(line.get("peak_bytes", 0)))
        self._take_readings()
        weights = self._replayed(line, best)
        if self._away is not None:
            recorder.measured |= self._away.measured
        self._with(line, splits.test)
        self.report_test(best, weights)

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
        folder = Path(log) if log else cache_folder() / "bundles" / trial.trial_id
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
        return None if device.log or device.client is None else Phone(Adb(), self._bundle.folder, Path(device.client))

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

    def _take(self, line: Line) -> None:
        step, done = int(line["step"]), len(self.recorder.losses)
        if step <= done:  # of an earlier attempt
            return
        if step > done + 1:
            raise UserError(f"the light client's log goes from step {done} to step {step}")
        losses = [float(loss) for loss in line["losses"]]
        if len(losses) != (expected := 2 * self._bundle.manifest.settings.queries):
            what = f"step {step} of the light client's log has {len(losses)} losses instead of {expected}"
            raise UserError(what, where=str(self._bundle.folder))
        coefs = tuple(map(float, line["coefs"]))
        mean = sum(losses) / len(losses)
        self.recorder.take(StepDone(step, mean, coefs, float(line["seconds"]), int(line["tokens"])))
        if step <= agreement.STEPS:
            self._first[step] = losses
        if step in (1, agreement.STEPS):  # a client that computes another function is refused at once
            self._compare()

    def _installed(self) -> InstalledSpace:
        """Install the space at the values at which the program begins."""
        initial = self._bundle.initial
        tensors = None if initial is None else {name: torch.from_numpy(value) for name, value in initial.items()}
        return self.bench.install(tensors)

    def _compare(self) -> None:
        """Compare the client's losses with the engine's. Raises UserError if it computes another function."""
        space = self._installed()
        try:
            ratio = agreement.of_first_steps(self.bench, space, self._first, self.recorder.coefs)
            self.recorder.take_noise_to_signal(ratio)
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
        scores = [[float(value) for value in row] for row in line["scores"]]
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
