"""run_trial: one trial, start to end, in this process. The one function that every executor calls."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Event, Outcome, Sharing, Sink, Trial, TrialState
from zo_sweeps.engine.follower import Follower
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.run.attempt import Attempt, StoppedError


def run_trial(
    trial: Trial,
    sink: Sink,
    journal: list[Event],
    attempt: int,
    should_stop: Callable[[], bool],
    *,
    sharing: Sharing | None = None,
) -> Outcome:
    """Runs `trial` from where `journal` ends, sending events to `sink`; see `zo_sweeps.core.trial.RunTrial`.

    Divergence and lack of memory are outcomes; so is an error, with its traceback. Nothing is raised but
    KeyboardInterrupt and SystemExit.
    """
    began = time.perf_counter()
    run = Attempt(trial, sink, journal, attempt, should_stop, sharing)
    try:
        outcome = run.execute()
    except StoppedError:
        outcome = run.outcome(TrialState.CANCELLED, error="stopped on request")
    except DivergedError as error:
        outcome = run.outcome(TrialState.DIVERGED, error=str(error))
    except Exception as error:
        state = TrialState.OUT_OF_MEMORY if _is_out_of_memory(error) else TrialState.FAILED
        text = "" if isinstance(error, UserError) else traceback.format_exc()
        outcome = run.outcome(state, error=f"{type(error).__name__}: {error}".splitlines()[0], trace=text)
    outcome = replace(outcome, metrics={**outcome.metrics, "wall_seconds": time.perf_counter() - began})
    run.flush()
    sink.emit({"type": "end", "time": time.time(), "outcome": outcome.to_json()})
    return outcome


class Following:
    """A trial that another process leads, joined: its model and its space stand here until `leave`.

    Args:
        journal: as for `run_trial`; its mask must be the one that is found here.

    Raises what `run_trial` has as the error of its outcome.
    """

    def __init__(self, trial: Trial, journal: Sequence[Event]) -> None:
        self._run = run = Attempt(trial, _Nowhere(), journal, 0, lambda: False)
        run.load()
        self._space = run.install()
        self.ready = run.agreed(self._space)
        self._follower = Follower(
            run.method(), run.model, self._space, run.objective, run.schedule(), seed=trial.config["seed"]
        )

    def answer(self, question: bytes) -> bytes:
        """The answer to a question of the trial's `Team`; see `zo_sweeps.engine.peers`."""
        return self._follower.answer(question)

    def leave(self) -> None:
        self._space.uninstall()


class _Nowhere:
    def emit(self, event: Event) -> None:
        pass


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
