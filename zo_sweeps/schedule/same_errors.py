"""Trials that fail in the same way, whatever the numbers in their errors: a sign that the next ones fail so, too."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.schedule.observer import Observer

if TYPE_CHECKING:
    from zo_sweeps.schedule.snapshot import Running

SAME_ERRORS = 5  # if so many different trials fail with the same error, and none has a result, the sweep is at fault
ROW_ERRORS = 3  # the same of a row: its other trials wait until the command is run again


class SameErrors:
    """The ends of the first attempts of a sweep, or of one of its rows.

    Args:
        enough: so many different trials must fail with the same error, and none have a result.
    """

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self._lines: dict[str, str] | None = {}  # trial_id -> its error; None once a trial had a result

    def see(self, trial_id: str, outcome: Outcome, again: bool) -> bool:
        """Take the end of an attempt into account; return whether enough trials have failed in the same way.

        Every FAILED attempt counts, but of LOST ones only a trial's last: one dying node takes several trials with it.

        Args:
            again: whether the trial is tried again.
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

    Args:
        rows: block -> its printed name.
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
                f"{len([*sweep.pending])} were not started: {outcome.error}"
            )
            sweep.say(sweep.stop.failing)
        if block and self._in_row[block].see(trial.trial_id, outcome, again):
            self._stop(block, outcome.error)
        elif outcome.state.is_result and self._stopped.pop(block, ""):  # one that ran meanwhile shows: the row is sound
            sweep.pending.sort()
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
            sweep.pending.sort()

    def _name(self, block: str) -> str:
        return self._rows.get(block, block)
