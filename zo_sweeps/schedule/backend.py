"""The protocol of a backend, its reports, and what calls a trial in its process. Independent of Ray.

A backend runs the attempts of a sweep; an executor (`zo_sweeps.methods.executor`) is the definition that builds one.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import End, Event, RunTrial, Sink, Start
from zo_sweeps.core.trial import Outcome, Sharing, Trial, TrialState

RUN_TRIAL = "zo_sweeps.run.run_trial:run_trial"
# How long events may wait in a trial's process: a killed driver loses, and recomputes, at most those.
FLUSH_SECONDS = 0.5

NO_SLOT, COLD, WARM = 0, 1, 2


@dataclass(frozen=True)
class Progress:
    """Events that a running attempt emitted since the last report, in order; the first report may have none."""

    trial_id: str
    attempt: int
    events: list[Event]


@dataclass(frozen=True)
class Finished:
    """The attempt returned; all its events were delivered before."""

    trial_id: str
    attempt: int
    outcome: Outcome


@dataclass(frozen=True)
class Lost:
    """The process or node of the attempt is gone; events not delivered by now are lost.

    `blameless`: it does not count towards the bound on losses: the attempt was handed back on request, or the fault
    is the node's. `sick`: then, what is wrong with the node.
    """

    trial_id: str
    attempt: int
    reason: str
    node: str = ""
    blameless: bool = False
    sick: str = ""


class CannotJoinError(UserError):
    """This process cannot join the cluster. Another may be able to, later: a head lists its nodes one by one."""


class HeadLostError(UserError):
    """The head of the cluster is gone. Ray allows one cluster per process, so rejoining needs a new process."""


Report = Progress | Finished | Lost
Deliver = Callable[[Report], None]


class Backend(Protocol):
    """The runner of a sweep's attempts. Used from one thread; `deliver` is called inside `poll` only.

    `grows`: nodes may join later, so a trial that fits nowhere now may wait for one.
    """

    grows: bool

    def start(self, deliver: Deliver, trials: int) -> None:
        """Prepare for at most `trials` trials at a time. Raises UserError when Ray or the cluster is not available."""

    def refusal(self, trial: Trial) -> str:
        """Return why no node here can ever run `trial`; "" when one can."""

    def fit(self, trial: Trial) -> int:
        """Return NO_SLOT, COLD (a free slot would have to load the base model) or WARM (a free slot holds it)."""

    def submit(self, trial: Trial, journal: list[Event], attempt: int) -> str:
        """Start an attempt on the best free slot (`fit` must be non-zero); return the name of its node."""

    def poll(self, timeout: float, left: int) -> None:
        """Deliver new reports; return after about `timeout` seconds at the latest (inline: after a trial).

        `left` trials run, or could if they had a slot. Raises HeadLostError.
        """

    def held_up(self) -> str:
        """Return what the nodes that could run the ready trials are busy with, if it is not this sweep; else ""."""

    def cancel_all(self) -> None:
        """Ask the running attempts to end as CANCELLED at their next step. Safe in a signal handler."""

    def shutdown(self) -> None:
        """End every process that `start` or `submit` started."""

    def describe(self) -> str:
        """Return a description of the backend, for "2 trials to run on ..."; call it after `start`."""


def run_guarded(
    target: str,
    trial: Trial,
    sink: Sink,
    journal: list[Event],
    attempt: int,
    should_stop: Callable[[], bool],
    **options: Any,
) -> Outcome:
    """Call `target` ("module:function", a RunTrial); turn any exception into a FAILED outcome and its `end` event.

    Of its further `options`, None stands for none.
    """
    try:
        module, _, name = target.partition(":")
        run_trial: RunTrial = getattr(importlib.import_module(module), name)
        given = {name: value for name, value in options.items() if value is not None}
        return run_trial(trial, sink, journal, attempt, should_stop, **given)
    except (Exception, SystemExit) as error:
        line = (str(error).strip().splitlines() or [""])[0]
        outcome = Outcome(
            trial.trial_id,
            TrialState.FAILED,
            error=f"{type(error).__name__}: {line}".rstrip(": "),
            traceback=traceback.format_exc(),
        )
        sink.emit(End(outcome=outcome))
        return outcome


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
