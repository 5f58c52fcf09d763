"""The protocol of a sweep's policies, and two small ones: what is said of runs, and why trials wait.

An observer sees what happens in the loop, says which trials may start, and may record results or stop the sweep. The
loop calls the observers in their order: what judges a trial's end comes before what shows it.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zo_sweeps.core.events import Event, Warned, only
from zo_sweeps.core.trial import Outcome, Trial, TrialState

if TYPE_CHECKING:
    from zo_sweeps.schedule.backend import Lost
    from zo_sweeps.schedule.snapshot import Running
    from zo_sweeps.schedule.sweep import Sweep


WAITS_SECONDS = 1.0  # interval between checks of why trials wait


class Observer:
    """A policy of a sweep. Each method is a moment of the loop; by default it does nothing."""

    _sweep: Sweep

    def begins(self, sweep: Sweep) -> None:
        """Take the sweep: the trials without a result are in `sweep.queue.held`, and none is queued yet."""
        self._sweep = sweep

    def ready(self, trial: Trial) -> str:
        """Return why a trial may not start now; "" if it may. Call `sweep.queue.sort` when the answer changes."""
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

    def looks(self, last: bool = False) -> None:
        if self._sweep.stop.interrupted:
            running = len(self._sweep.heard)
            self._sweep.say_once(
                "interrupted",
                f"stopping after the current step of {running} running trial{'s' * (running != 1)}; "
                "the same command resumes from there (Ctrl-C again: stop at once)",
            )

    def ended(self, run: Running, outcome: Outcome, again: bool) -> None:
        self.looks()

    def saw(self, run: Running, events: Sequence[Event]) -> None:
        self.looks()
        for warned in only(Warned, events):
            text = f"{run.trial.label or run.trial.trial_id}: {warned.text} (said once per sweep)"
            self._sweep.say_once(warned.metric, text)

    def lost(self, report: Lost) -> None:
        if report.sick:
            text = f"{report.sick}: it gets fewer trials until one finishes there (said once per sweep)"
            self._sweep.say_once(report.node, text)


class Waits(Observer):
    """Why ready trials wait: reason -> number of those that no node can take."""

    _looked = 0.0

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
            sweep.say_once(reason.partition(":")[0], f"{trials} for a node to join: {reason}")
        idle = sweep.queue and not sweep.heard
        if idle and not reasons and (why := backend.held_up()):
            sweep.waiting = {why: len(sweep.queue)}
            sweep.say_once(why, f"waits: {why}")


SAME_ERRORS = 5  # if so many different trials fail with the same error, and none has a result, the sweep is at fault
ROW_ERRORS = 3  # the same of a row: its other trials wait until the command is run again


class SameErrors:
    """The ends of a sweep's or a row's first attempts: whether `enough` trials failed alike, and none has a result."""

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self._lines: dict[str, str] | None = {}  # trial_id -> its error; None once a trial had a result

    def see(self, trial_id: str, outcome: Outcome, again: bool) -> bool:
        """Take the end of an attempt into account; return whether enough trials have failed in the same way.

        Every FAILED attempt counts, but of LOST ones only a trial's last: one dying node takes several trials with it.
        """
        if outcome.state.is_result:
            self._lines = None
        if self._lines is None or not outcome.state.is_retryable or (outcome.state is TrialState.LOST and again):
            return False
        self._lines[trial_id] = re.sub(r"[0-9a-f]{8,}|\d+", "#", outcome.error)
        return self.count >= self._enough and len(set(self._lines.values())) == 1

    @property
    def count(self) -> int:
        """How many different trials have failed; 0 once one had a result."""
        return len(self._lines or ())


class OneCause(Observer):
    """Trials that fail in the same way: the first SAME_ERRORS end the sweep, the first ROW_ERRORS of a row that row.

    `rows` has the printed name of each block.
    """

    def __init__(self, rows: Mapping[str, str] | None = None) -> None:
        self._rows, self._all = rows or {}, SameErrors(SAME_ERRORS)
        self._in_row: defaultdict[str, SameErrors] = defaultdict(lambda: SameErrors(ROW_ERRORS))  # by block
        self._stopped: dict[str, str] = {}  # block -> why its other trials wait

    def ready(self, trial: Trial) -> str:
        why = self._stopped.get(trial.block, "")
        return "" if self._sweep.ledger.state(trial.trial_id).is_retryable else why

    def ended(self, run: Running, outcome: Outcome, again: bool) -> None:
        sweep, trial, block = self._sweep, run.trial, run.trial.block
        if self._all.see(trial.trial_id, outcome, again) and not sweep.stop.failing:
            sweep.stop.failing = (
                f"the first {self._all.count} trials all failed in the same way, so the other "
                f"{len(sweep.queue.every)} were not started: {outcome.error}"
            )
            sweep.say(sweep.stop.failing)
        if block and self._in_row[block].see(trial.trial_id, outcome, again):
            self._stop(block, outcome.error)
        elif outcome.state.is_result and self._stopped.pop(block, ""):  # one that ran meanwhile shows: the row is sound
            sweep.queue.sort()
        sweep.stopped_rows = {self._name(one): why for one, why in self._stopped.items()}

    def _stop(self, block: str, error: str) -> None:
        """Hold back the trials of a row that have not failed; retries go on."""
        sweep = self._sweep
        states = [sweep.ledger.state(trial.trial_id) for trial in sweep.queue if trial.block == block]
        if others := sum(not state.is_retryable for state in states):
            self._stopped[block] = (
                f"the first {self._in_row[block].count} trials of the row {self._name(block)} failed in the same way, "
                f"so its other {others} wait until the command is run again: {error}"
            )
            sweep.say(self._stopped[block])
            sweep.queue.sort()

    def _name(self, block: str) -> str:
        return self._rows.get(block, block)
