"""What trials were measured to need: the plan's estimates of memory, corrected by finished trials of the same kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.devices.estimate import RUNTIME_BYTES

MARGIN = 1.1  # the next trial's batches may be a little longer, its allocator less lucky
QUANTUM = 64 * 2**20  # corrections are rounded up to it


class Measured:
    """The largest peak of each `Trial.memory_key`, from the outcomes of a ledger and those that `learn` is told of."""

    def __init__(self, trials: Iterable[Trial], outcomes: Mapping[str, Outcome]) -> None:
        self._bytes: dict[str, int] = {}
        for trial in trials:
            if outcome := outcomes.get(trial.trial_id):
                self.learn(trial, outcome)

    def learn(self, trial: Trial, outcome: Outcome) -> None:
        """A trial has ended. One that did not succeed has not shown all that it needs."""
        peak = outcome.metrics.get("peak_memory_bytes")
        if outcome.state is not TrialState.SUCCEEDED or not peak:
            return
        outside = RUNTIME_BYTES if outcome.device.get("kind") == "cuda" else 0  # what torch's allocator does not see
        needed = -(-int(peak * MARGIN + outside) // QUANTUM) * QUANTUM
        key = trial.memory_key
        self._bytes[key] = max(needed, self._bytes.get(key, 0))

    def corrected(self, trial: Trial) -> Trial:
        """The trial, needing what its kind was measured to need; as it is while there is no such measurement."""
        found = self._bytes.get(trial.memory_key)
        return trial if found is None else replace(trial, needs=replace(trial.needs, memory_bytes=found))
