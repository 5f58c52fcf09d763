"""Trials for the benchmarks of the cluster, which step, sleep and report, but compute nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from zo_sweeps.core.trial import Event, Outcome, Sink, Stored, Trial, TrialState
from zo_sweeps.record.journal import last_step

TARGET = "benchmarks.idle_trials:run_trial"


def trials(count: int, *, steps: int = 1, pause: float = 0.0) -> Iterator[Trial]:
    """Yield `count` trials of `steps` steps of `pause` seconds, all of one base model."""
    for number in range(count):
        config = Stored({"pause": pause})
        label = f"trial {number}"
        yield Trial(f"{number:016x}", config, warm_key="model", cost=float(steps), steps=steps, label=label)


def run_trial(trial: Trial, sink: Sink, journal: list[Event], attempt: int, should_stop: Callable[[], bool]) -> Outcome:
    """Run a trial; see `zo_sweeps.core.trial.RunTrial`."""

    def emit(kind: str, **fields: object) -> None:
        sink.emit({"type": kind, "time": time.time(), **fields})

    done = last_step(journal)
    emit("start", attempt=attempt, device={}, versions={}, resumed_from=done)
    state = TrialState.SUCCEEDED
    for step in range(done + 1, trial.steps + 1):
        if should_stop():
            state = TrialState.CANCELLED
            break
        time.sleep(trial.config.to_json()["pause"])
        emit("steps", first=step, losses=[1.0 / step], coefs=[[0.0]], seconds=trial.config.to_json()["pause"], tokens=1)
        done = step
    outcome = Outcome(trial.trial_id, state, {"wall_seconds": 0.0}, steps_done=done)
    emit("end", outcome=outcome.to_json())
    return outcome
