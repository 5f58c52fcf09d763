"""Trials for the benchmarks of the cluster, which step, sleep and report, but compute nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from zo_sweeps.core.events import End, Event, Sink, Start, Steps
from zo_sweeps.core.trial import Outcome, StoredConfig, Trial, TrialState
from zo_sweeps.record.journal import last_step

TARGET = "benchmarks.idle_trials:run_trial"


def trials(count: int, *, steps: int = 1, pause: float = 0.0) -> Iterator[Trial]:
    """Yield `count` trials of `steps` steps of `pause` seconds, all of one base model."""
    for number in range(count):
        config = StoredConfig({"pause": pause})
        label = f"trial {number}"
        yield Trial(f"{number:016x}", config, warm_key="model", cost=float(steps), steps=steps, label=label)


def run_trial(trial: Trial, sink: Sink, journal: list[Event], attempt: int, should_stop: Callable[[], bool]) -> Outcome:
    """Run a trial; see `zo_sweeps.core.trial.RunTrial`."""
    done, pause = last_step(journal), trial.config.to_json()["pause"]
    sink.emit(Start(attempt=attempt, device={}, versions={}, resumed_from=done))
    state = TrialState.SUCCEEDED
    for step in range(done + 1, trial.steps + 1):
        if should_stop():
            state = TrialState.CANCELLED
            break
        time.sleep(pause)
        sink.emit(Steps(first=step, losses=(1.0 / step,), coefs=((0.0,),), seconds=pause, tokens=1))
        done = step
    outcome = Outcome(trial.trial_id, state, {"wall_seconds": 0.0}, steps_done=done)
    sink.emit(End(outcome=outcome))
    return outcome
