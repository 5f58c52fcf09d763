"""What trials were measured to need: the plan's estimates of memory, corrected by finished trials of the same kind."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.devices.estimate import RUNTIME_BYTES

MARGIN = 1.1  # the next trial's batches may be a little longer, its allocator less lucky
QUANTUM = 64 * 2**20  # corrections are rounded up to it


def memory_key(trial: Trial) -> str:
    """Trials with the same key need the same memory: model, method, batch and data agree; seed and lr may differ."""
    config = trial.config
    shared: list[Any] = [config.get(part) for part in ("method", "space", "evaluation", "perturbation", "precision")]
    shared += [_only(config.get("model"), "fingerprint"), _only(config.get("task"), "fingerprint", "name")]
    shared += [_only(config.get("estimator"), "name", "q"), _only(config.get("update"), "name")]
    shared += [_only(config.get("train"), "batch", "max_length", "objective"), _only(config.get("prompt"), "name")]
    return json.dumps([*shared, trial.needs.device], sort_keys=True)


class Measured:
    """The largest peak of each `memory_key`, from the outcomes of a ledger and those that `learn` is told of."""

    def __init__(self, trials: Iterable[Trial], outcomes: Mapping[str, Outcome]) -> None:
        self._bytes: dict[str, int] = {}
        self._kinds: dict[str, str] = {}
        for trial in trials:
            if outcome := outcomes.get(trial.trial_id):
                self.learn(trial, outcome)

    def kind(self, trial: Trial) -> str:
        """`memory_key(trial)`, computed once."""
        key = self._kinds.get(trial.trial_id)
        if key is None:
            key = self._kinds[trial.trial_id] = memory_key(trial)
        return key

    def learn(self, trial: Trial, outcome: Outcome) -> None:
        """A trial has ended. One that did not succeed has not shown all that it needs."""
        peak = outcome.metrics.get("peak_memory_bytes")
        if outcome.state is not TrialState.SUCCEEDED or not peak:
            return
        outside = RUNTIME_BYTES if outcome.device.get("kind") == "cuda" else 0  # what torch's allocator does not see
        needed = -(-int(peak * MARGIN + outside) // QUANTUM) * QUANTUM
        key = self.kind(trial)
        self._bytes[key] = max(needed, self._bytes.get(key, 0))

    def corrected(self, trial: Trial) -> Trial:
        """The trial, needing what its kind was measured to need; as it is while there is no such measurement."""
        found = self._bytes.get(self.kind(trial)) if self._bytes else None
        return trial if found is None else replace(trial, needs=replace(trial.needs, memory_bytes=found))


def _only(part: Any, *names: str) -> list[Any]:
    return [part.get(name) for name in names] if isinstance(part, Mapping) else [part]
