"""The protocol of a sweep's policies, and two small ones: what is said of runs, and why trials wait.

An observer sees what happens in the loop, says which trials may start, and may record results or stop the sweep. The
loop calls the observers in their order: what judges a trial's end comes before what shows it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zo_sweeps.core.events import Event, Warned, only
from zo_sweeps.core.trial import Outcome, Trial

if TYPE_CHECKING:
    from zo_sweeps.schedule.backend import Lost
    from zo_sweeps.schedule.snapshot import Running
    from zo_sweeps.schedule.sweep import Sweep

WAITS_SECONDS = 1.0  # interval between checks of why trials wait


class Observer:
    """A policy of a sweep. Each method is a moment of the loop; by default it does nothing."""

    _sweep: Sweep

    def begins(self, sweep: Sweep) -> None:
        """Take the sweep: the trials without a result are in `sweep.pending.held`, and none is queued yet."""
        self._sweep = sweep

    def ready(self, trial: Trial) -> str:
        """Return why a trial may not start now; "" if it may. Call `sweep.pending.sort` when the answer changes."""
        return ""

    def started(self, run: Running) -> None:
        """Note an attempt, whose journal was read."""

    def saw(self, run: Running, events: Sequence[Event]) -> None:
        """Take events that are in the journal now."""

    def lost(self, report: Lost) -> None:
        """Note that a process or a node is lost; `ended` follows."""

    def ended(self, run: Running, outcome: Outcome, again: bool) -> None:
        """Note the end of an attempt; with `again`, its trial is pending again. `run.attempt` is 0 if none ran."""

    def looks(self, last: bool = False) -> None:
        """Look at the sweep, twice per second, when no more trials can start; with `last`, nothing runs any more."""


class Remarks(Observer):
    """What is said once per sweep: warnings of trials, nodes that lose every trial, and that it is interrupted."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._announced = False

    def looks(self, last: bool = False) -> None:
        if self._sweep.stop.interrupted and not self._announced:
            self._announced = True
            running = sum(run.heard for run in self._sweep.running.values())
            self._sweep.say(
                f"stopping after the current step of {running} running trial{'s' * (running != 1)}; "
                "the same command resumes from there (Ctrl-C again: stop at once)"
            )

    def ended(self, run: Running, outcome: Outcome, again: bool) -> None:
        self.looks()

    def saw(self, run: Running, events: Sequence[Event]) -> None:
        self.looks()
        for warned in only(Warned, events):
            self._say(warned.metric, f"{run.trial.label or run.trial.trial_id}: {warned.text}")

    def lost(self, report: Lost) -> None:
        if report.sick:
            self._say(report.node, f"{report.sick}: it gets fewer trials until one finishes there")

    def _say(self, about: str, text: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self._sweep.say(f"{text} (said once per sweep)")


class Waits(Observer):
    """Why ready trials wait: reason -> number of those that no node can take."""

    def __init__(self) -> None:
        self._looked = 0.0
        self._said: set[str] = set()

    def looks(self, last: bool = False) -> None:
        sweep, backend, now = self._sweep, self._sweep.backend, time.monotonic()
        if now - self._looked < WAITS_SECONDS and not last:
            return
        reasons: Counter[str] = Counter()
        for trial, n in sweep.queue.heads():
            if reason := backend.refusal(sweep.memory.corrected(trial)):
                reasons[reason] += n
        sweep.waiting, self._looked = dict(reasons), now
        if last or not backend.grows:
            return  # reported at the end
        for reason, n in reasons.items():
            trials = f"{n} trial{'s wait' if n > 1 else ' waits'}"
            self._say(reason.partition(":")[0], f"{trials} for a node to join: {reason}")
        idle = sweep.queue and not any(run.heard for run in sweep.running.values())
        if idle and not reasons and (why := backend.held_up()):
            sweep.waiting = {why: len(sweep.queue)}
            self._say(why, f"waits: {why}")

    def _say(self, about: str, text: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self._sweep.say(text)
