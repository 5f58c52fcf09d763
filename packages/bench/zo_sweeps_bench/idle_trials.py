"""Trials for the benchmarks of the cluster, which step, sleep and report, but compute nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from zo_sweeps.core.events import End, Event, ScoredDev, Sink, Start, Steps
from zo_sweeps.core.trial import Outcome, StoredConfig, Trial, TrialState
from zo_sweeps.record.journal import last_step

TARGET = "zo_sweeps_bench.idle_trials:run_trial"


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


def ended(trial: Trial, score: float | None = None) -> list[Event]:
    """Return the events of a finished trial; with a score on dev and test, if there is one."""
    events: list[Event] = [Start(time=1.0, attempt=1, device={}, versions={}, resumed_from=0)]
    for first in range(1, trial.steps + 1, 100):
        part = range(first, first + 100)
        losses, coefs = tuple(1.0 / step for step in part), tuple((1.0,) for _ in part)
        events.append(Steps(time=1.0 + first, first=first, losses=losses, coefs=coefs, seconds=1.0, tokens=1))
    metrics = {"wall_seconds": 1.0}
    if score is not None:
        events.append(ScoredDev(time=1.5 + trial.steps, step=trial.steps, loss=1 - score, metric=score))
        metrics |= {"dev/metric": score, "dev/loss": 1 - score, "test/metric": score}
    outcome = Outcome(trial.trial_id, TrialState.SUCCEEDED, metrics, steps_done=trial.steps)
    return [*events, End(time=2.0 + trial.steps, outcome=outcome)]
