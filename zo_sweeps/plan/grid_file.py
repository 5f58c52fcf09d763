"""The parts of a grid as its file has them: flattened, and refused where they would be passed over without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zo_sweeps.config.command_line import CHOOSES
from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import TRIAL_GROUPS, TRIAL_KEYS, BlockConfig, GridConfig
from zo_sweeps.core.errors import UserError, unknown

LR = "update.lr"  # whose axis `grid.rates` is
PER_COLUMN = ("columns", "per_task")  # parts in which a list is an axis


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a tree: {"update": {"name": "sgd", "lr": 1}} -> {"update": "sgd", "update.lr": 1}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{path}."))
        else:
            flat[CHOOSES.get(path, path)] = value
    return flat


def axes_of(tree: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    """Flatten a tree of axes. Raises UserError for an axis that is no list, or empty."""
    axes = {}
    for name, values in flatten(tree).items():
        if not isinstance(values, list):
            raise UserError(f"axis {name!r} must be a list", where=where, fix=f"did you mean [{values}]?")
        if not values:
            raise UserError(f"axis {name!r} is empty", where=where)
        axes[name] = values
    return axes


def check(grid: GridConfig, name: str, composer: Composer) -> None:
    """Raise UserError for what a block, or the grid for it, says in vain.

    That is a seed or a task where none is read, a choice that is no name, a `per_task` of no column, and an `exclude`
    of what no row has. What the command line left out or changed may be named all the same.
    """
    block, of_grid, of_block = grid.blocks[name], f"grid {grid.name}", f"grid {grid.name}, block {name}"
    for part, where, values in _parts(grid, block, of_block):
        _check_choices(part, values, where)
    if block.per_task:
        columns = [_columns(*version, name, block) for version in _versions(grid, composer)]
        for column in {*block.per_task}.difference(*columns):
            raise unknown("column", column, columns[0], where=f"{of_block}, per_task")
    for entries, names, where in ((grid.exclude, (), of_grid), (block.exclude, (name,), of_block)):
        versions = [_values(*version, names, block) for version in _versions(grid, composer)] if entries else []
        for key, value in (item for entry in entries for item in flatten(entry).items()):
            _check_choices("exclude", {key: value}, where)
            if (key == LR and grid.rates) or any(value in had.get(key, ()) for had in versions):
                continue
            had = versions[0]
            kind, wanted, choices = (key, value, had[key]) if key in had else ("key", key, [*had])
            raise unknown(kind, wanted, {*map(str, choices)}, where=f"{where}, exclude")


def _check_choices(part: str, values: Mapping[str, Any], where: str) -> None:
    """Raise UserError for a seed, a task of `per_task`, a part without its options, and what is no name of a member."""
    if "seed" in values:
        raise UserError(f"no seed is read from {part}", where=where, fix="write seeds: [...] in the grid")
    if "task" in values and part == "per_task":
        raise UserError("no task is read from per_task", where=where, fix="its column is the task, or sets it")
    for key in {*TRIAL_KEYS} - {*TRIAL_GROUPS} & {*values}:
        fix = f"write {key}: {{OPTION: {'[VALUE, VALUE]' if part == 'axes' else 'VALUE'}}}"
        raise UserError(f"{key} in {part} is a whole part", where=where, fix=fix)
    for key in TRIAL_GROUPS:
        value, several = values.get(key), part == "axes" or (part in PER_COLUMN and key != "task")
        for one in value if several and isinstance(value, list) else [value]:
            if isinstance(one, (list, Mapping)):
                fix = f"write {key}: {'[NAME, NAME]' if several else 'NAME'}"
                raise UserError(f"{one} in {part} names no {key}", where=where, fix=fix)


def _versions(grid: GridConfig, composer: Composer) -> Iterator[tuple[GridConfig, Composer]]:
    """Yield the grid as it is, and as written if the command line may have changed it."""
    yield grid, composer
    if composer.command_line.grid and composer.command_line.changes_trials:
        written = composer.as_written()
        yield written.run.grid, written


def _columns(grid: GridConfig, composer: Composer, name: str, block: BlockConfig) -> list[str]:
    """Return the names of a block's columns, or else its tasks; `block` stands for one that the grid has not."""
    return [*grid.columns] or [str(task) for task in _values(grid, composer, (name,), block)["task"]]


def _values(grid: GridConfig, composer: Composer, names: Sequence[str], block: BlockConfig) -> dict[str, list[Any]]:
    """Return key -> the values that blocks, or all if none is named, may have of their file and the command line."""
    had: dict[str, list[Any]] = {key: [*values] for key, values in composer.forced.items()}
    for name in names or grid.blocks:
        for part, _, values in _parts(grid, grid.blocks.get(name, block), ""):
            for key, value in values.items():
                several = isinstance(value, list) and part != "fixed"
                had.setdefault(key, []).extend(value if several else [value])
    had.setdefault("task", [composer.trial["task"]["name"]])
    return had


def _parts(grid: GridConfig, block: BlockConfig, of_block: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (part, where, values) of all that a grid's file sets in the trials of a block."""
    of_grid = f"grid {grid.name}"
    for one, where in ((grid, of_grid), (block, of_block)):
        yield "fixed", where, flatten(one.fixed)
        yield "axes", where, flatten(one.axes)
    yield from (("columns", of_grid, flatten(grid.column_values(column))) for column in grid.columns)
    yield from (("per_task", of_block, flatten(values)) for values in block.per_task.values())
