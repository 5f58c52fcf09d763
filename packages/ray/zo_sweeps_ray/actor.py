"""The actor that runs trials in a process of Ray's, or of an agent's board on the head. Independent of Ray."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from zo_sweeps.core.events import Event, Start
from zo_sweeps.core.trial import Outcome, Sharing, Trial
from zo_sweeps.schedule.backend import run_guarded


class TrialActor:
    """A runner of one attempt at a time, in `run`; `drain` and `stop` are called meanwhile, from other threads.

    Or a follower, with `follow` and `answer`, of an attempt that another actor leads. SIGTERM hands the trial back: it
    ends as CANCELLED after its step, and the driver learns that the process leaves.

    Args:
        target: the RunTrial, as "module:function".
        threads: torch's threads; torch reads OMP_NUM_THREADS when it is first imported.
        place: the node's name and device profile, added to `start` events.
    """

    def __init__(self, target: str, threads: int, place: Mapping[str, str]) -> None:
        self._target, self._place = target, place
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
        self._changed = threading.Condition()
        self._current = self._stopped = ("", 0)
        self._events: list[Event] = []
        self._first = 0  # number of the first event that is still held
        self._outcome: Outcome | None = None
        self._leaving = False
        self._following: Any = None
        self._listen()

    def run(self, trial: dict[str, Any], journal: list[Event], attempt: int, sharing: Sharing | None = None) -> None:
        """Run one attempt to its end. Never raises: errors are in the outcome."""
        parsed = Trial.from_json(trial)
        self.leave()
        current = (parsed.trial_id, attempt)
        with self._changed:
            self._current, self._events, self._first, self._outcome = current, [], 0, None
        stop = lambda: self._leaving or self._stopped == current
        outcome = self._run(parsed, journal, attempt, stop, sharing)
        with self._changed:
            self._outcome = outcome
            self._changed.notify_all()

    def _run(
        self, trial: Trial, journal: list[Event], attempt: int, stop: Callable[[], bool], sharing: Sharing | None
    ) -> Outcome:
        return run_guarded(self._target, trial, self, journal, attempt, stop, sharing=sharing)

    def follow(self, trial: dict[str, Any], journal: list[Event]) -> bytes:
        """Join a trial that another actor leads; return the first message for its `Team`."""
        self.leave()
        module = importlib.import_module(self._target.partition(":")[0])
        self._following = module.Following(Trial.from_json(trial), journal)
        return bytes(self._following.ready)

    def answer(self, question: bytes) -> bytes:
        """Compute a follower's part of a step."""
        if self._following is None:
            raise RuntimeError("this process no longer follows the trial")
        return bytes(self._following.answer(question))

    def leave(self) -> None:
        """Stop following."""
        if self._following is not None:
            self._following.leave()
            self._following = None

    def emit(self, event: Event) -> None:
        if isinstance(event, Start):
            event = event.at(**self._place)
        with self._changed:
            self._events.append(event)

    def drain(
        self, trial_id: str, attempt: int, cursor: int, wait: float
    ) -> tuple[list[Event], dict[str, Any] | None, bool]:
        """Return events from number `cursor` on, the outcome (with the last events), and whether this process leaves.

        Waits for the end of the attempt, up to `wait` seconds. The call acknowledges the events before `cursor`.
        """
        wanted = (trial_id, attempt)
        with self._changed:
            self._changed.wait_for(lambda: self._current == wanted and self._outcome is not None, wait)
            if self._current != wanted:  # the call of `run` has not arrived yet
                return [], None, self._leaving
            del self._events[: cursor - self._first]
            self._first = cursor
            return list(self._events), self._outcome.to_json() if self._outcome else None, self._leaving

    def stop(self, trial_id: str, attempt: int) -> None:
        """Ask the attempt to end as CANCELLED at its next step."""
        self._stopped = (trial_id, attempt)

    def _listen(self) -> None:
        before = signal.getsignal(signal.SIGTERM)

        def handle(number: int, frame: Any) -> None:
            self._leaving = True
            if self._current[0] and self._outcome is None:
                return  # the driver ends this process when it has the outcome
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, handle)
