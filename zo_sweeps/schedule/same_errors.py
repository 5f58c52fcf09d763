"""Trials that fail in the same way, whatever the numbers in their errors: a sign that the next ones fail so, too."""

from __future__ import annotations

import re

from zo_sweeps.core.trial import Outcome, TrialState


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
