"""Selection of hyper-parameters inside one cell: on dev, never on test."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from zo_sweeps.core.fingerprint import canonical_json
from zo_sweeps.core.trial import TrialState
from zo_sweeps.tables.records import NOT_RUN, Record, Rule

_TO_COME = {
    NOT_RUN,
    *(s.value for s in (TrialState.PENDING, TrialState.RUNNING, TrialState.CANCELLED, TrialState.PAUSED)),
}


@dataclass(frozen=True)
class HyperparameterSetting:
    """One point of the search: its records, one per seed, by ascending seed."""

    hyperparameters: Mapping[str, Any]
    records: tuple[Record, ...]

    @property
    def has_succeeded(self) -> bool:
        return all(record.state == TrialState.SUCCEEDED.value for record in self.records)

    def mean(self, metric: str) -> float | None:
        """Return the mean of `metric` over the seeds; None if a seed lacks it or has a non-finite value."""
        values = [record.metrics.get(metric, math.nan) for record in self.records]
        return fmean(values) if all(math.isfinite(value) for value in values) else None


def settings(records: Iterable[Record]) -> list[HyperparameterSetting]:
    """Group the records of one cell into settings, in grid order, whatever the order of the records.

    Grid order is ascending by the smallest `Record.order`, then by the hyper-parameters themselves. Raises ValueError
    if a setting has two records of one seed: averaging them would fake a smaller spread.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(canonical_json(record.hyperparameters), []).append(record)
    for group in groups.values():
        group.sort(key=lambda record: record.seed)
        for one, other in pairwise(group):
            if one.seed == other.seed:
                raise ValueError(
                    f"trials {one.trial_id} and {other.trial_id} are the same cell ({one.block}, {one.column}), "
                    f"setting {dict(one.hyperparameters)} and seed {one.seed}"
                )
    ranked = sorted(groups.values(), key=lambda group: (min(r.order for r in group), _sortable(group[0])))
    return [HyperparameterSetting(group[0].hyperparameters, tuple(group)) for group in ranked]


def _sortable(record: Record) -> list[tuple[str, bool, float, str]]:
    items = sorted(record.hyperparameters.items())
    return [(k, not is_number(v), float(v) if is_number(v) else 0.0, str(v)) for k, v in items]


def select(candidates: list[HyperparameterSetting], rule: Rule) -> HyperparameterSetting | None:
    """Return the argmin (or argmax) over the settings of the mean dev metric over seeds; ties go to the first.

    "First" is in grid order. Only a setting all of whose seeds have succeeded, with a finite dev metric, is a
    candidate. A cell without a search (one setting) needs no dev metric. None if there is no candidate.
    """
    finished = [setting for setting in candidates if setting.has_succeeded]
    if len(candidates) == 1 and finished:
        return finished[0]
    sign = 1.0 if rule.mode == "min" else -1.0
    means = [(setting.mean(rule.metric), setting) for setting in finished]
    ranked = [(sign * mean, setting) for mean, setting in means if mean is not None]
    return min(ranked, key=lambda one: one[0])[1] if ranked else None


def so_far(candidates: list[HyperparameterSetting]) -> list[HyperparameterSetting]:
    """Return the settings with a result, and nothing but successes, cut to the seeds that have one.

    A seed that failed, diverged or cannot run is not left out of a mean: its setting is no candidate.
    """
    started = []
    for setting in candidates:
        done = tuple(record for record in setting.records if record.state == TrialState.SUCCEEDED.value)
        others = {record.state for record in setting.records if record not in done}
        if done and others <= _TO_COME:
            started.append(HyperparameterSetting(setting.hyperparameters, done))
    return started


def edges(selected: HyperparameterSetting, candidates: list[HyperparameterSetting]) -> dict[str, str]:
    """Return axis -> "smallest" or "largest", for numeric axes with the selected value at an end of the range."""
    ends: dict[str, str] = {}
    for axis, value in selected.hyperparameters.items():
        values: list[Any] = [setting.hyperparameters.get(axis) for setting in candidates]
        if not all(is_number(item) for item in values) or len(set(values)) < 2:
            continue
        if value == min(values):
            ends[axis] = "smallest"
        elif value == max(values):
            ends[axis] = "largest"
    return ends


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
