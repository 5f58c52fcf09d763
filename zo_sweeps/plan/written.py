"""The cells of a grid as its files have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import GridConfig
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.expand import Setting, expand
from zo_sweeps.plan.overrides import Overrides, Promise
from zo_sweeps.plan.resolve import Options, Parts, resolve


@dataclass(frozen=True)
class Ran:
    """A cell: what its row and column promise, and the configurations of its trials."""

    promise: Promise
    configs: list[TrialConfig] = field(default_factory=list)


Runs = Mapping[tuple[str, str], Ran]  # (block, column) -> the cell
_resolved: WeakKeyDictionary[Composer, tuple[GridConfig, Runs]] = WeakKeyDictionary()


def add(runs: dict[tuple[str, str], Ran], block: str, setting: Setting, config: TrialConfig) -> None:
    """Add a trial to the cell of its block and column."""
    column = setting.column or config.task.name
    runs.setdefault((block, column), Ran(setting.promise)).configs.append(config)


def as_written(composer: Composer, parts: Parts) -> tuple[GridConfig, Runs]:
    """Return the composer's grid without any override of trials, and its cells; none if the command line has none.

    The first seed stands for all. A block that only an override makes valid has no cells. Resolved once per composer.
    """
    runs: dict[tuple[str, str], Ran] = {}
    if not composer.command_line.changes_trials:
        return composer.run.grid, runs
    written = composer.as_written()
    if written in _resolved:
        return _resolved[written]
    grid = replace(written.run.grid, seeds=written.run.grid.seeds[:1])
    options = Options()
    for name, block in grid.blocks.items():
        try:
            for setting in expand(written, grid, name, block, Overrides(written)):
                add(runs, name, setting, resolve(written, setting, options, parts))
        except UserError:
            continue
    _resolved[written] = written.run.grid, runs
    return _resolved[written]
