"""How much of the grid as written each of its cells has: the settings of its search, and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Plan
from zo_sweeps.plan.expand import expand
from zo_sweeps.plan.overrides import Overrides
from zo_sweeps.plan.resolve import Options, Parts, resolve

Extents = Mapping[tuple[str, str], tuple[int, int]]  # cell (block, column) -> (settings, seeds)


def extents(plan: Plan, composer: Composer) -> Extents:
    """Return the settings and seeds of every cell of the plan's grid as written.

    Where nothing depends on the seed, as of an untrained model on the same rows, one seed is all. {} if the grid is not
    known here.
    """
    if plan.extents is not None:
        return plan.extents
    line = composer.command_line
    if line.changes_trials or line.sets("seed") or line.sets("grid.seeds"):
        return of_grid(composer.as_written()) if line.grid else {}
    trials: dict[tuple[str, str], dict[str, set[str]]] = {}
    for cell in plan.cells:
        of_cell = trials.setdefault((cell.block, cell.task), {})
        of_cell.setdefault(fingerprint([cell.hyperparameters]), set()).add(cell.trial_id)
    return {at: (len(by_setting), max(map(len, by_setting.values()))) for at, by_setting in trials.items()}


def of_grid(written: Composer) -> Extents:
    """Return the same of a composed grid. Cost: expands it, and resolves a setting per block, column and method."""
    grid = written.run.grid
    options, parts, configs = Options(), Parts(), dict[tuple[Any, ...], TrialConfig]()
    settings: dict[tuple[str, str], set[str]] = {}
    seeds: dict[tuple[str, str], set[int]] = {}
    for name, block in grid.blocks.items():
        for setting in expand(written, grid, name, block, Overrides(written)):
            alike = (name, setting.column, setting.choices.get("task"), setting.choices.get("method"))
            if alike not in configs:
                configs[alike] = resolve(written, setting, options, parts)
            config = configs[alike]
            cell = name, setting.column or config.task.name
            searched = {key: value for key, value in setting.searched.items() if config.uses(key)}
            settings.setdefault(cell, set()).add(fingerprint([searched]))
            draws_rows = setting.values.get("split.seed", written.trial["split"]["seed"]) is None
            counts = "seed" in config.parts_used or draws_rows
            seeds.setdefault(cell, set()).add(setting.values["seed"] if counts else 0)
    return {cell: (len(settings[cell]), len(seeds[cell])) for cell in settings}
