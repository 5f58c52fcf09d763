"""The rivals of successive halving: a trial's result depends on the trials it is compared with, and so does its id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from zo_sweeps.config.schema import SelectConfig
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.methods.parts import Train
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.availability import Availability
from zo_sweeps.plan.expand import Setting


def among(drafts: Sequence[tuple[Availability, Setting]], rule: SelectConfig) -> Iterator[tuple[Availability, Setting]]:
    """Yield a row's trials in order; those with rungs have the digest of their column's trials and the rule."""
    columns: dict[str, list[str]] = {}
    for needs, setting in drafts:
        if has_rungs(needs.config):
            columns.setdefault(_column(needs, setting), []).append(needs.config.trial_id())
    digests = {column: fingerprint([rule.metric, rule.mode, ids]) for column, ids in columns.items()}
    for needs, setting in drafts:
        config = needs.config
        if has_rungs(config):
            train = replace(config.train, halving_among=digests[_column(needs, setting)])
            needs = replace(needs, config=replace(config, train=train))
        elif config.train.halving:  # it runs in full, and so it is the same trial as without the option
            train = replace(config.train, halving=(), halving_keep=Train.halving_keep)
            needs = replace(needs, config=replace(config, train=train))
        yield needs, setting


def has_rungs(config: TrialConfig) -> bool:
    """Return whether the trial is compared with others at rungs: its kind can pause, and resume from the log."""
    return bool(config.train.rungs) and config.method.kind.resumes


def moved(configs: Iterable[TrialConfig]) -> str:
    """Return the line on trials whose rungs are not at their share of the steps; "" without any."""
    places: dict[str, None] = {}
    for config in configs:
        train = config.train
        if has_rungs(config) and [share * train.steps for share in train.halving] != [*train.rungs]:
            places[f"step {' and '.join(map(str, train.rungs))} of {train.steps}"] = None
    return f"train.halving compares where dev is evaluated next: {'; '.join(places)}" if places else ""


def _column(needs: Availability, setting: Setting) -> str:
    return setting.column or needs.config.task.name
