"""The cells whose trials are not those of the grid as written, or absent: no published number stands beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import GridConfig
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.methods.definition import write
from zo_sweeps.methods.parts import Device, Model, ModelSource, Train
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Plan, used
from zo_sweeps.plan.overrides import Overrides
from zo_sweeps.plan.resolve import Resolver, as_written, expand

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
    resolver, configs = Resolver(written), dict[tuple[Any, ...], TrialConfig]()
    cells: dict[tuple[str, str], tuple[set[str], set[int]]] = {}
    for name in grid.blocks:
        for setting in expand(grid, name, Overrides(written)):
            alike = (name, setting.column, setting.choices.get("task"), setting.choices.get("method"))
            if alike not in configs:
                configs[alike] = resolver.resolve(setting)
            config = configs[alike]
            settings, seeds = cells.setdefault((name, setting.column or config.task.name), (set(), set()))
            settings.add(fingerprint([used(setting.searched, config)]))
            draws_rows = setting.values.get("split.seed", written.trial["split"]["seed"]) is None
            counts = "seed" in config.parts_used or draws_rows
            seeds.add(setting.values["seed"] if counts else 0)
    return {cell: (len(settings), len(seeds)) for cell, (settings, seeds) in cells.items()}


ANYWHERE = Device()


def beside_written(plan: Plan, composer: Composer) -> Plan:
    """Return a plan that keeps how it differs from the grid as written: found once, needed often."""
    return replace(plan, altered=altered(plan, composer), extents=extents(plan, composer))


def altered(plan: Plan, composer: Composer) -> frozenset[tuple[str, str]]:
    """Return the cells (block, column) with a trial that the grid as written does not have there, and those left out.

    The seed and the place of the data are not compared: they do not change what a cell means. Nor is the machine,
    unless the grid names one there: then its runtime and the form of its programs count as well.
    A folder that is said to hold a hub's model, and has its shape, is that model here. Cells whose column or published
    row has another name now are altered: the number would be another's.
    """
    if plan.altered is not None:
        return plan.altered
    if not composer.command_line.changes_trials:
        return frozenset()
    then, runs = as_written(composer)
    settings: dict[tuple[str, str], set[tuple[str, str]]] = {}
    on_hub: dict[str, Model] = {}
    for place, ran in runs.items():
        for config in ran.configs:
            if config.model.source is ModelSource.HUB:
                on_hub[config.model.name] = config.model
            device = "" if config.device.any else _computed_by(config.device)
            settings.setdefault(place, set()).add((_comparable(config), device))
    seen: dict[str, tuple[str, str]] = {}
    cells = {(cell.block, cell.task) for cell in plan.cells}
    found = {*settings} - cells
    found |= {cell for cell in cells if {*cell} & _renamed(plan.grid, then)}
    for cell in plan.cells:
        if cell.trial_id not in seen:
            config = TrialConfig.of(plan.every[cell.trial_id].config)
            hub = on_hub.get(config.model.name)
            if hub is not None and config.model.is_claimed and hub.arch == config.model.arch:
                config = replace(config, model=hub)
            seen[cell.trial_id] = _comparable(config), _computed_by(config.device)
        written_there = settings.get((cell.block, cell.task), set())
        if not {seen[cell.trial_id], (seen[cell.trial_id][0], "")} & written_there:
            found.add((cell.block, cell.task))
    return frozenset(found)


def _renamed(grid: GridConfig, then: GridConfig) -> set[str]:
    """Return the columns, and the rows of published tables, that have another name than in the grid as written."""
    columns = {name for name in {*grid.columns} & {*then.columns} if grid.column_label(name) != then.column_label(name)}
    names = {(block, name) for table in then.tables.values() for block, name in table.rows.items()}
    tables = [table for key, table in grid.tables.items() if key in then.tables]
    rows = ((block, name.partition(" → ")[0]) for table in tables for block, name in table.rows.items())
    return columns | {block for block, name in rows if (block, name) not in names}


def _computed_by(device: Device) -> str:
    return f"{device.name}, {device.runtime}, {device.form}"


def _comparable(config: TrialConfig) -> str:
    """Return the fingerprint of a configuration without its seed, its machine, its rungs and the contents of its files.

    What successive halving stopped is in a footnote of the cell; the trial that it selected ran in full.
    """
    bare = replace(
        config.with_files(look=False)[0],
        seed=0,
        device=ANYWHERE,
        model=replace(config.model, fingerprint=""),
        task=replace(config.task, fingerprint=""),
        split=replace(config.split, seed=0 if config.split.seed == config.seed else config.split.seed),
        data=replace(config.data, text_fingerprint=""),
        train=replace(config.train, halving=(), halving_keep=Train.halving_keep, halving_among=""),
    )
    model: Mapping[str, Any] = write(config.model)
    shape = {key: model[key] for key in ("source", "path", "revision", "arch", "seed")}
    return fingerprint([bare.identity(), shape])
