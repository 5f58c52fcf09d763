"""The base class of the runners, one per kind of trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import torch

from zo_sweeps.core.host import processor
from zo_sweeps.core.memory_parts import SCORING, TOTAL, Part
from zo_sweeps.core.trial import Sharing
from zo_sweeps.devices.energy import EnergyMeter, Load
from zo_sweeps.devices.peak_memory import MemoryMeter, is_out_of_memory
from zo_sweeps.devices.probe import probe
from zo_sweeps.engine.train import Evaluated, StepDone, evaluated_at
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.run.memory_by_part import Work, at_peak
from zo_sweeps.run.workbench import Workbench


class StoppedError(Exception):
    """The executor asked for a stop; the steps so far are in the journal."""


class PausedError(Exception):
    """The trial is at a rung of successive halving, and its rivals decide whether it goes on."""


class Runner:
    """A trial of one kind on its workbench; subclasses define `run`.

    Args:
        meter: already started.
        should_stop: called between steps.
        sharing: the peers that share the steps; None if there are none.
    """

    def __init__(
        self, bench: Workbench, meter: MemoryMeter, should_stop: Callable[[], bool], sharing: Sharing | None
    ) -> None:
        self.bench, self.config, self.recorder = bench, bench.config, bench.recorder
        self.meter, self.should_stop, self.sharing = meter, should_stop, sharing

    def device(self) -> dict[str, Any]:
        """Describe the device that runs the steps; see `devices.probe.probe`."""
        host, followers = probe(), len(self.sharing.peers) if self.sharing else 0
        on_cpu = {"kind": "cpu", "profile": "cpu", "name": host["name"] if host["unified"] else processor()}
        return {
            **host,
            **(on_cpu if self.bench.device.type == "cpu" else {}),
            "runtime": self.config.device.runtime,
            "memory_definition": self.meter.definition,
            "threads": torch.get_num_threads(),
            "processes": 1 + followers,
            **({"divided": divided} if (divided := len(self.bench.devices)) > 1 else {}),
        }

    def load(self) -> Load | None:
        """Return the meter of other work on this machine; None where the trial itself has other processes."""
        return Load() if self.sharing is None else None

    def energy_meter(self) -> EnergyMeter:
        """Return the meter of the steps' joules, and of the condition of the device that runs them."""
        if self.sharing is not None:
            return EnergyMeter(None, reason="the steps are shared by several processes")
        if len(self.bench.devices) > 1:
            return EnergyMeter(None, reason="the model is divided over several GPUs, and joules are read of one")
        return EnergyMeter.of(self.bench.device)

    def run(self) -> None:
        """Run the trial to its end. Raises StoppedError, DivergedError, or any other error on the way."""
        raise NotImplementedError

    @torch.inference_mode()
    def score_untrained(self) -> None:
        """Keep the dev loss before the first step, with the space installed, unless an earlier attempt did."""
        if math.isnan(self.recorder.untrained):
            self.recorder.untrained = self.bench.scored(self.bench.splits.dev)[0]

    def report_test(self, step: int, weights: str = "") -> None:
        """Score the test split once, with the selected weights.

        Args:
            weights: their digest, `engine.replay.digest`; "" if nothing was trained.
        """
        recorder, bench = self.recorder, self.bench
        recorder.selected = step
        if recorder.test is None:
            test = bench.score(bench.splits.test)
            if not (math.isfinite(test.loss) and math.isfinite(test.metric)):
                raise DivergedError(f"non-finite test loss at step {step}, seed {self.config.seed}: {test.loss}")
            recorder.take_test(step, test, bench.splits.test_rows, weights)

    def stop_memory(self) -> None:
        """Record the peak memory so far."""
        self.recorder.measured["peak_memory_bytes"] = float(self.meter.stop())

    def measure_parts(self, space: InstalledSpace | None, step: Work | None) -> None:
        """Record the tensors alive at the peak of one more step, by part, and the bytes of one more scored forward.

        Of a trial without steps, the parts are those of the forward. What diverges or runs out of memory is not
        recorded: the results stand. Changes theta: for when the trial has its results.

        Args:
            space: as installed in the model; None if none is.
            step: takes the step of `recorder.largest`.
        """
        measured, forward = self.recorder.measured, self.bench.largest_forward()
        try:
            parts = at_peak(self.bench, space, lambda _: self.bench.scored(forward))
            measured[SCORING] = float(sum(parts.values()))
            if step is not None:
                parts = at_peak(self.bench, space, step)
        except DivergedError:
            return
        except (MemoryError, RuntimeError) as error:  # torch's own are RuntimeErrors
            if is_out_of_memory(error):
                return
            raise
        self.record_parts(parts)

    def record_parts(self, parts: Mapping[Part, int]) -> None:
        """Record the bytes of each part, and their sum."""
        self.recorder.measured |= {part.metric: float(size) for part, size in parts.items()}
        self.recorder.measured[TOTAL] = float(sum(parts.values()))

    def stop_if_asked(self, event: StepDone | Evaluated) -> None:
        """Raise StoppedError if a stop was requested, unless only the test is left.

        Raises PausedError after the evaluation of a rung that the journal has no decision on.
        """
        step = event.step
        if isinstance(event, Evaluated) and step in self.config.train.rungs and step not in self.recorder.rungs:
            raise PausedError(f"paused at step {step}, until the other settings are there")
        if self.should_stop() and not (isinstance(event, StepDone) and event.step == self.config.train.steps):
            self.recorder.flush()
            raise StoppedError

    def counted(self, events: Iterator[StepDone | Evaluated]) -> Iterator[StepDone | Evaluated]:
        """Yield the events; count the first step's operations if asked to, which slows that step down."""
        if not self.config.train.flops:
            yield from events
            return
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            first = next(events)
        self.recorder.measured["flops_per_step"] = float(counter.get_total_flops())
        yield first
        yield from events


def runner_of(config: TrialConfig, away: bool = False) -> type[Runner]:
    """Return the class that runs a trial, by its kind, and by the runtime of its device.

    Raises UserError if the package of the runtime is not installed.
    """
    runtime = config.device.installed_runtime
    if runtime is None:
        raise config.device.missing_runtime or AssertionError
    path = runtime.runner(config, away)
    module, _, name = path.partition(":")
    runner: type[Runner] = getattr(import_module(module), name)
    assert issubclass(runner, Runner), f"{path} is not a Runner"
    return runner


class Untrained(Runner):
    """A trial without steps: dev and test are scored with the base weights."""

    def run(self) -> None:
        if 0 not in self.recorder.evaluations:
            self.recorder.take(evaluated_at(0, self.bench.score_dev, self.config.seed))
        self.report_test(0)
        self.stop_memory()
        self.measure_parts(None, None)
