"""Measured memory: the plan's estimates, corrected by the peaks of finished trials of the same kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.devices.estimate import RUNTIME_BYTES

MARGIN = 1.1  # the next trial may have slightly longer batches and a more fragmented allocator
QUANTUM = 64 * 2**20  # corrections are rounded up to it


class Measured:
    """The largest peak of each `Trial.memory_key`, from the outcomes of a ledger and those passed to `learn`."""

    def __init__(self, trials: Iterable[Trial], outcomes: Mapping[str, Outcome]) -> None:
        self._bytes: dict[str, int] = {}
        for trial in trials:
            if outcome := outcomes.get(trial.trial_id):
                self.learn(trial, outcome)

    def learn(self, trial: Trial, outcome: Outcome) -> None:
        """Take the peak of an ended trial into account; only a successful trial has reached its full peak."""
        peak = outcome.metrics.get("peak_memory_bytes")
        if outcome.state is not TrialState.SUCCEEDED or not peak or not math.isfinite(peak):
            return
        outside = RUNTIME_BYTES if outcome.device.get("kind") == "cuda" else 0  # memory outside torch's allocator
        needed = -(-int(peak * MARGIN + outside) // QUANTUM) * QUANTUM
        key = trial.memory_key
        self._bytes[key] = max(needed, self._bytes.get(key, 0))

    def corrected(self, trial: Trial) -> Trial:
        """Return the trial with the measured need of its kind; unchanged if its kind has no measurement.

        Never less than estimated for an exported program: exporting it takes more than the steps that were measured.
        """
        measured = self._bytes.get(trial.memory_key)
        if measured is not None and trial.needs.programs:
            measured = max(measured, trial.needs.memory_bytes)
        return trial if measured is None else replace(trial, needs=replace(trial.needs, memory_bytes=measured))
