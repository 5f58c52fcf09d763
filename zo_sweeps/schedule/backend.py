"""The protocol of a backend, its reports, and what calls a trial in its process. Independent of Ray.

A backend runs the attempts of a sweep; an executor (`zo_sweeps.methods.executor`) is the definition that builds one.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import End, Event, RunTrial, Sink
from zo_sweeps.core.trial import Outcome, Trial, TrialState

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
