"""run_trial: one trial, start to end, in this process. The one function that every executor calls."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import End, Event, Sink, Start
from zo_sweeps.core.host import provenance
from zo_sweeps.core.light_client import Away
from zo_sweeps.core.trial import Outcome, Sharing, Trial, TrialState
from zo_sweeps.devices.peak_memory import MemoryMeter, is_out_of_memory, set_aside
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.methods.trial_config import TrialConfig, code_of
from zo_sweeps.run import workbench
from zo_sweeps.run.recorder import Nowhere, Recorder
from zo_sweeps.run.runner import PausedError, StoppedError, runner_of
from zo_sweeps.run.training import ZerothOrderRunner
from zo_sweeps.run.workbench import Workbench


def run_trial(
    trial: Trial,
    sink: Sink,
    journal: list[Event],
    attempt: int,
    should_stop: Callable[[], bool],
    *,
    sharing: Sharing | None = None,
    away: Away | None = None,
) -> Outcome:
    """Run `trial` from where `journal` ends, sending events to `sink`; see `zo_sweeps.core.events.RunTrial`.

    With `away`, the light client runs the trial's program on another machine, and its log is read here.

    Divergence, lack of memory and errors are outcomes, errors with their traceback. Raises only KeyboardInterrupt and
    SystemExit.
    """
    set_aside()  # before anything of this trial exists: the next one can collect all that it leaves
    began = time.perf_counter()
    recorder = Recorder(trial, sink, journal)
    try:
        _execute(trial, recorder, attempt, should_stop, sharing, away)
        outcome = recorder.outcome(TrialState.SUCCEEDED)
    except StoppedError:
        outcome = recorder.outcome(TrialState.CANCELLED, error="stopped on request")
    except PausedError as error:
        outcome = recorder.outcome(TrialState.PAUSED, error=str(error))
    except DivergedError as error:
        outcome = recorder.outcome(TrialState.DIVERGED, error=str(error))
    except UserError as error:
        outcome = recorder.outcome(TrialState.FAILED, error=f"UserError: {'; '.join(map(str, error.errors))}")
    except Exception as error:  # any fault of a trial is its outcome; the sweep goes on
        state = TrialState.OUT_OF_MEMORY if is_out_of_memory(error) else TrialState.FAILED
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        outcome = recorder.outcome(state, error=what, trace=traceback.format_exc())
    took = {**outcome.metrics, "wall_seconds": time.perf_counter() - began}
    for name in ("wall_seconds", "load_seconds"):  # of all attempts
        seconds = took.pop(name, 0.0)
        if seconds and not recorder.fused and recorder.before is not None:
            took[name] = seconds + recorder.before.get(name, 0.0)
    outcome = replace(outcome, metrics=took)
    sink.emit(End(outcome=outcome))
    return outcome


def _execute(
    trial: Trial,
    recorder: Recorder,
    attempt: int,
    should_stop: Callable[[], bool],
    sharing: Sharing | None,
    away: Away | None,
) -> None:
    config = TrialConfig.of(trial.config)
    bench = Workbench(config, trial.warm_key, recorder)
    meter = MemoryMeter(*bench.devices)
    followed: dict[str, Any] = {} if away is None else {"away": away}
    runner = runner_of(config, away is not None)(bench, meter, should_stop, sharing, **followed)
    recorder.energy, recorder.load = runner.energy_meter(), runner.load()
    recorder.device = {**runner.device(), **recorder.energy.definitions}
    code = code_of(config)
    recorder.codes = [*(recorder.codes if config.method.kind.resumes else ()), code]
    start = Start(
        attempt=attempt,
        device={**recorder.device, **({} if recorder.load is None else {"load": recorder.load.read()})},
        versions=provenance(),
        resumed_from=recorder.reported if config.method.kind.resumes else 0,
        code=code,
    )
    recorder.emit(start)
    if config.method.kind.of_model:
        loading = time.perf_counter()
        bench.load()
        recorder.measured["load_seconds"] = time.perf_counter() - loading
        recorder.selection = bench.selection()
        recorder.measured["weights_bytes"] = float(bench.model.weight_bytes)
    meter.start()
    try:
        with recorder.energy:
            runner.run()
    finally:
        meter.stop()


class Following:
    """A follower of a trial that another process leads; holds the model and the space until `leave`.

    Its mask must equal the journal's. `ready` is the first message to the leader, a fingerprint that both must share.
    Raises the errors that `run_trial` turns into outcomes.
    """

    def __init__(self, trial: Trial, journal: Sequence[Event]) -> None:
        config = TrialConfig.of(trial.config)
        bench = Workbench(config, trial.warm_key, Recorder(trial, Nowhere(), journal))
        runner = runner_of(config)
        assert issubclass(runner, ZerothOrderRunner)
        self._space, self._answer = runner.follower(bench)
        self.ready = bench.agreed(self._space)

    def answer(self, question: bytes) -> bytes:
        """Answer a question of the trial's `Team`; see `zo_sweeps.engine.peers`."""
        return self._answer(question)

    def leave(self) -> None:
        """Restore the model, so that the next trial can use it."""
        self._space.uninstall()


def set_up(trial: Trial, journal: Sequence[Event]) -> None:
    """Load a trial's model, install its space and prepare its runtime: computes what the cache folder does not have.

    Raises UserError if they are not those that the journal names, and what loading raises. Cost: as of a trial's start.
    """
    config = TrialConfig.of(trial.config)
    workbench.warm = None  # a model that is loaded would not be looked for in the cache folder
    try:
        bench = Workbench(config, trial.warm_key, Recorder(trial, Nowhere(), journal))
        bench.load()
        if config.method.kind.trains:
            space = bench.install()
            try:
                if runtime := config.device.installed_runtime:
                    runtime.prepare(bench, space)
            finally:
                space.uninstall()
    finally:
        workbench.warm = None
