"""The process that runs trials, seen from inside: buffers events until the driver has them. Knows nothing of Ray."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from zo_sweeps.schedule.executors import run_guarded
from zo_sweeps.trial import Event, Outcome, Trial


class TrialActor:
    """Runs one attempt at a time in `run`; `drain` and `stop` are called beside it, from other threads.

    Args:
        target: the RunTrial, as "module:function".
        threads: for torch; it reads OMP_NUM_THREADS when it is first imported.
    """

    def __init__(self, target: str, threads: int) -> None:
        self._target = target
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
        self._changed = threading.Condition()
        self._current = self._stopped = ("", 0)
        self._events: list[Event] = []
        self._first = 0  # number of the first event that is still held
        self._outcome: Outcome | None = None

    def run(self, trial: dict[str, Any], journal: list[Event], attempt: int) -> None:
        """One attempt, to its end. Never raises: what goes wrong is in the outcome."""
        parsed = Trial.from_json(trial)
        current = (parsed.trial_id, attempt)
        with self._changed:
            self._current, self._events, self._first, self._outcome = current, [], 0, None
        outcome = run_guarded(self._target, parsed, self, journal, attempt, lambda: self._stopped == current)
        with self._changed:
            self._outcome = outcome
            self._changed.notify_all()

    def emit(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)

    def drain(self, trial_id: str, attempt: int, cursor: int, wait: float) -> tuple[list[Event], dict[str, Any] | None]:
        """Events from number `cursor` on, and the outcome (with the last of them) once there is one.

        Waits for up to `wait` seconds for the end of the attempt. Events before `cursor` are thereby acknowledged.
        """
        wanted = (trial_id, attempt)
        with self._changed:
            self._changed.wait_for(lambda: self._current == wanted and self._outcome is not None, wait)
            if self._current != wanted:  # `run` has not got here yet
                return [], None
            del self._events[: cursor - self._first]
            self._first = cursor
            return list(self._events), self._outcome.to_json() if self._outcome else None

    def stop(self, trial_id: str, attempt: int) -> None:
        """Asks the attempt to end as CANCELLED at its next step."""
        self._stopped = (trial_id, attempt)
