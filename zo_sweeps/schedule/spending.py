"""A sweep's budget: what its trials have cost so far, whether the rest can stay below the caps, when one is reached.

Hours are those in which at least one of the sweep's trials was running, in any run of any command on the state folder:
the ledger has when attempts began and ended, and the journal how far a killed one came. Joules are those of the steps
in the journals. The trials are counted whether their result is from this run or an earlier one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Event, Steps, only
from zo_sweeps.core.trial import Outcome, Trial
from zo_sweeps.core.units import counted, duration, joules_text
from zo_sweeps.methods.executor import Budget
from zo_sweeps.schedule.ledger import Span, Standing
from zo_sweeps.schedule.observer import Observer

if TYPE_CHECKING:
    from zo_sweeps.schedule.snapshot import Running
    from zo_sweeps.schedule.sweep import Sweep

HOUR = 3600.0


@dataclass(frozen=True)
class Spent:
    """What a sweep's trials have cost: wall-clock seconds in which any of them ran, joules of their steps."""

    seconds: float = 0.0
    joules: float = 0.0


def spent(budget: Budget, standing: Standing, trial_ids: Collection[str], read: Callable[[str], list[Event]]) -> Spent:
    """Return what trials have cost so far, as far as the budget asks.

    Args:
        read: trial_id -> the events of its journal. Every journal is read if the budget has joules; if it has hours,
            only those of attempts whose driver was killed.
    """

    def events(trial_id: str) -> list[Event]:
        try:
            return read(trial_id)
        except UserError:  # a damaged journal fails its trial when that is launched
            return []

    seconds = joules = 0.0
    if budget.hours:
        spans = [span for span in standing.spans if span.trial_id in trial_ids]
        seconds = covered((span.begin, _end(span, events)) for span in spans)
    if budget.joules:
        joules = sum(joules_of(events(trial_id)) for trial_id in trial_ids if trial_id in standing.attempts)
    return Spent(seconds, joules)


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals (begin, end)."""
    length, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        length += max(0.0, end - max(begin, until))
        until = max(until, end)
    return length


def joules_of(events: Iterable[Event]) -> float:
    """Return the energy of the steps among a trial's events."""
    return sum((report.joules or 0.0 for report in only(Steps, events)), 0.0)


def _end(span: Span, events: Callable[[str], list[Event]]) -> float:
    """Return when an attempt ended; of one whose driver was killed, the time of its last event."""
    if span.end is not None:
        return span.end
    times = [event.time for event in events(span.trial_id)]
    return max((at for at in times if span.begin <= at <= span.before), default=span.begin)


def over(budget: Budget, trials: int, so_far: Spent, seconds: float | None, joules: float | None) -> list[str]:
    """Return one line for each cap that a sweep cannot hold, as predicted: what it needs, the cap, and what to do.

    Args:
        trials: that can run, with or without a result.
        seconds, joules: that those without a result will cost, in wall-clock time; None where nothing is known.
    """
    needs = []  # (cap, what the plan needs, a cap that would do)
    if budget.trials is not None and trials > budget.trials:
        needs.append(("trials", f"the plan has {counted(trials, 'trial')}", str(trials)))
    times = (budget.hours, so_far.seconds, seconds, HOUR, duration)
    energies = (budget.joules, so_far.joules, joules, 1.0, joules_text)
    for cap, (most, had, more, unit, text) in (("hours", times), ("joules", energies)):
        if most is not None and more and had + more > most * unit:
            besides = f" more than the {text(had)} it has had" if had else ""
            needs.append((cap, f"the plan needs about {text(more)}{besides}", cap_above((had + more) / unit)))
    fix = "restrict the grid, or give budget.partial=true to run a part"
    return [
        f"{what}, and budget.{cap}={getattr(budget, cap):g}; raise it ({needed} would do), {fix}"
        for cap, what, needed in needs
    ]


def cap_above(number: float) -> str:
    """Return a number of two digits that is not below `number`."""
    digits = f"{number:.1e}"
    return f"{float(digits) if float(digits) >= number else float(f'{number * 1.05:.1e}'):g}"


class Caps(Observer):
    """A sweep's budget: at a cap, running trials stop after their step, or no further trial begins.

    Args:
        so_far: what earlier runs have spent.
        clock: monotonic seconds.
    """

    def __init__(
        self, budget: Budget | None = None, so_far: Spent | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._budget, self._clock, self._full = budget or Budget(), clock, ""
        so_far = so_far or Spent()
        self._seconds, self._joules = so_far.seconds, so_far.joules
        self._last = clock()

    def begins(self, sweep: Sweep) -> None:
        self._sweep, self._begun = sweep, sweep.trials.keys() & sweep.ledger.attempts.keys()
        self._spend()
        self._fills()

    def ready(self, trial: Trial) -> str:
        return "" if trial.trial_id in self._begun else self._full

    def started(self, run: Running) -> None:
        self._note(run.trial.trial_id)

    def saw(self, run: Running, events: Sequence[Event]) -> None:
        self._joules += joules_of(events)
        if self._budget.joules is not None and any(report.joules is None for report in only(Steps, events)):
            text = f"budget.joules: {run.node} reports no energy, so its trials do not count (said once per sweep)"
            self._sweep.say_once("budget.joules", text)
        self._spend()

    def ended(self, run: Running, outcome: Outcome, again: bool) -> None:
        if not outcome.never_ran:
            self._note(run.trial.trial_id)  # one whose journal is damaged never started

    def looks(self, last: bool = False) -> None:
        self._spend()

    def _note(self, begun: str) -> None:
        self._begun.add(begun)
        if self._fills():
            self._sweep.queue.sort()

    def _fills(self) -> bool:
        """Return whether the cap of trials is reached now, and keeps some from starting."""
        cap, sweep = self._budget.trials, self._sweep
        if self._full or cap is None or len(self._begun) < cap:
            return False
        self._full = f"budget.trials={cap}: {counted(len(self._begun), 'trial')}, all runs together"
        if all(trial.trial_id in self._begun for trial in sweep.queue.every):
            return False
        sweep.stop.over = sweep.stop.over or self._full
        sweep.say(f"{self._full}; no further trial is started")
        return True

    def _spend(self) -> None:
        """Count the time since the last call, if a trial was running, and ask the trials to stop at a cap."""
        stop, running, now = self._sweep.stop, len(self._sweep.running), self._clock()
        self._seconds += now - self._last if running else 0.0
        self._last = now
        if stop.cancels or not (over := self._reached()):
            return
        stop.over = over
        trials = f"{running} running trial{'s' * (running != 1)}"
        self._sweep.say(f"{over}; stopping after the current step of {trials}" if running else over)
        stop.cancel()

    def _reached(self) -> str:
        """Return the cap that stops the running trials, and what was spent; "" if none is reached."""
        budget = self._budget
        if budget.hours is not None and self._seconds >= budget.hours * HOUR:
            return f"budget.hours={budget.hours:g}: {duration(self._seconds)} with running trials, all runs together"
        if budget.joules is not None and self._joules >= budget.joules:
            return f"budget.joules={budget.joules:g}: {joules_text(self._joules)} in steps, all runs together"
        return ""
