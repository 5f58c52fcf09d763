"""A block of a grid -> the settings of its axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zo_sweeps.config.command_line import CHOOSES, PLACE, Forced
from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import TRIAL_GROUPS, BlockConfig, GridConfig
from zo_sweeps.core.errors import UserError
from zo_sweeps.plan.overrides import Overrides, Promise

LR = "update.lr"  # whose axis `grid.rates` is


@dataclass(frozen=True)
class Setting:
    """One point of a block's axes at one column and seed.

    Args:
        choices: group -> option. values: key -> value.
        searched: the values of the axes, of groups and keys.
        promise: what the block and its column promise there.
        column: one of the grid's `columns`; "" if the columns are tasks.
        own: keys that the block sets for members that it alone chooses: an error if the member lacks them.
        where: grid and block, for messages.
    """

    choices: Mapping[str, str]
    values: Mapping[str, Any]
    searched: Mapping[str, Any]
    promise: Promise = field(default_factory=Promise)
    column: str = ""
    own: frozenset[str] = frozenset()
    where: str = ""


def expand(
    composer: Composer, grid: GridConfig, name: str, block: BlockConfig, overrides: Overrides
) -> Iterator[Setting]:
    """Yield the settings of a block in the order of the file; the seeds vary fastest.

    Args:
        overrides: the command line's, which leave columns of the block out or change what they promise.

    Raises UserError for an axis that is no list, is empty or is fixed as well, and for keys and values of a wrong type.
    """
    where = f"grid {grid.name}, block {name}"
    forced = composer.forced
    of_block = flatten(block.fixed)
    fixed = {**flatten(grid.fixed), **of_block}
    axes = {**_axes(grid.axes, where), **_axes(block.axes, where)}
    own_keys = {*of_block, *_axes(block.axes, where)}
    if grid.rates and LR not in axes and (lr := fixed.pop(LR, None) or composer.option_of(fixed, LR)):
        of_block.pop(LR, None)
        axes[LR] = [float(f"{rate * lr:.2g}") for rate in grid.rates]
    for key in {*fixed} & {*axes}:
        raise UserError(f"{key!r} is both fixed and an axis", where=where)
    default_task = fixed.get("task", composer.trial["task"]["name"])
    seeds: Sequence[int] = forced.values.get("seed") or grid.seeds
    exclude = [flatten(entry) for entry in (*grid.exclude, *block.exclude)]
    for column, task, of_column in _columns(grid, forced, axes.get("task"), default_task, where):
        per_task = flatten(block.per_task.get(column or task, {}))
        promise = Promise(flatten(grid.fixed), of_block, of_column, per_task, axes, task)
        if (kept := overrides.at(promise, name, column or task)) is None:
            continue
        of_column = {key: value for key, value in of_column.items() if key != "task"}
        here, own = _at_task(fixed, axes, {**of_column, **per_task}, kept)
        several = {*own, *forced.choices}  # groups whose member may not be the block's own
        strict = {key for key in own_keys | {*per_task} if not several & {key.partition(".")[0], "method"}} - {
            *forced.values
        }
        for key, options in {**{key: [value] for key, value in here.items()}, **own}.items():
            if key not in TRIAL_GROUPS:
                if key.endswith(".display"):
                    at = PLACE if key in forced.values else where
                    fix = f"a name of your own is one of a file of your own, conf/{key.partition('.')[0]}/NAME.yaml"
                    raise UserError(f"{key} is the printed name of what runs, and no option", where=at, fix=fix)
                for value in options:
                    composer.check_value(key, value, where)
        for point in itertools.product(*own.values()):
            searched = dict(zip(own, point, strict=True))
            chosen = {**here, **searched, "task": task}
            if any(all(chosen.get(key) == value for key, value in entry.items()) for entry in exclude):
                continue
            choices = {key: str(value) for key, value in chosen.items() if key in TRIAL_GROUPS}
            values = {key: value for key, value in chosen.items() if key not in TRIAL_GROUPS}
            for seed in seeds:
                yield Setting(choices, {**values, "seed": seed}, searched, promise, column, frozenset(strict), where)


def _columns(
    grid: GridConfig, forced: Forced, tasks: Sequence[str] | None, default_task: str, where: str
) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (name, task, values) for each of the grid's `columns`, or ("", task, {}) for each task if it has none.

    The values have the key `task` if the column fixes it. Tasks of the command line replace the grid's.
    """
    given = forced.choices.get("task", ())
    if not grid.columns:
        return [("", task, {}) for task in given or tasks or [default_task]]
    if len(given) > 1 or tasks:
        raise UserError("the columns of this grid are not tasks: there can be one task", where=where)
    found = []
    for name in grid.columns:
        flat = flatten(grid.column_values(name))
        found.append((name, given[0] if given else flat.get("task", default_task), flat))
    return found


def _at_task(
    fixed: Mapping[str, Any], axes: Mapping[str, list[Any]], per_task: Mapping[str, Any], forced: Forced
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return (fixed values, axes) of a block at one column.

    The column's values, `per_task` (flattened), replace the block's, and the command line's replace both.
    """
    here, own = dict(fixed), dict(axes)
    given = {name: list(values) for name, values in {**forced.choices, **forced.values}.items()}
    for name, value in [*per_task.items(), *((n, v if len(v) > 1 else v[0]) for n, v in given.items())]:
        here.pop(name, None)
        if isinstance(value, list) and (name not in forced.values or len(given[name]) > 1):
            own[name] = value
        else:
            own.pop(name, None)
            here[name] = value
    for name in ("task", "seed"):
        here.pop(name, None)
        own.pop(name, None)
    return here, own


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


def _axes(tree: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    """Flatten a tree of axes. Raises UserError for an axis that is no list, or empty."""
    axes = {}
    for name, values in flatten(tree).items():
        if not isinstance(values, list):
            raise UserError(f"axis {name!r} must be a list", where=where, fix=f"did you mean [{values}]?")
        if not values:
            raise UserError(f"axis {name!r} is empty", where=where)
        axes[name] = values
    return axes
