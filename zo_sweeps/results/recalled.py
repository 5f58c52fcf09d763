"""A sweep as it was launched, from its own record in the state folder: reading needs neither its model nor its data."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replace_text
from zo_sweeps.plan import stored
from zo_sweeps.plan.altered import altered
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.record.commands import Command, latest, recall
from zo_sweeps.schedule.ledger import must_have_run, read_standing


@dataclass(frozen=True)
class Reading:
    """A plan to read results by.

    Args:
        plan: as launched, if a sweep with this command was; otherwise as it is today.
        composer: of the command; of the state folder alone if the command cannot be composed here.
        notes: lines on what has changed since the launch.
    """

    plan: Plan
    composer: Composer
    command: Command
    notes: tuple[str, ...] = ()


def save(plan: Plan, composer: Composer, state_dir: Path, sweep_id: str) -> None:
    """Write the plan of a sweep that is launched into its state folder."""
    path = _path(state_dir, sweep_id)
    path.parent.mkdir(exist_ok=True)
    replace_text(path, json.dumps(stored.dump(plan, altered(plan, composer)), ensure_ascii=False))


def read(overrides: Sequence[str], config_dirs: Sequence[str] = (), *, has_run: bool = False) -> Reading:
    """Return the plan of the last sweep that a command means (see `recall`); without one, the command's plan of today.

    Model and data may be absent, and the folders of a recorded command too.

    Args:
        has_run: whether something must have been run in the state folder.

    Raises UserError for bad input, and if nothing has been run there that must have been.
    """
    command = recall(overrides, config_dirs)
    if command is None:
        command = Command.of(overrides, config_dirs)
        composer = Composer(command.overrides, command.config_dirs)
        if has_run:
            must_have_run(composer.run.folder)
        plan = build(composer)
        return Reading(plan, composer, command, tuple(_not_run(plan)))
    return of_sweep(command, config_dirs)


def of_sweep(command: Command, config_dirs: Sequence[str] = ()) -> Reading:
    """Return the plan of a sweep that was run, as it was launched.

    Args:
        command: recalled, with its sweep_id, and the state folder as its last override.
        config_dirs: further folders to look for members in.

    Raises UserError for a command of an earlier version that cannot be composed here.
    """
    folder = state_dir_of(command)
    data = _load(folder, command.sweep_id)
    if data is None:  # launched by a version without this record
        composer = Composer(command.overrides, command.config_dirs)
        return Reading(build(composer), composer, command)
    try:
        composer = Composer(command.overrides, command.config_dirs)
    except UserError as error:
        there = [one for one in (*command.config_dirs, *config_dirs) if Path(one).is_dir()]
        composer = Composer([command.overrides[-1]], there)
        return Reading(stored.load(data, composer.run), composer, command, (_cannot_plan(error),))
    plan = stored.load(data, composer.run)
    try:
        notes = stored.changes(plan, data["sources"], build(composer))
    except UserError as error:
        notes = [_cannot_plan(error)]
    return Reading(plan, composer, command, tuple(notes))


def _cannot_plan(error: UserError) -> str:
    return f"the command cannot be planned here: {' '.join(str(error.errors[0]).split())}"


def since(plan: Plan, command: Command) -> list[str]:
    """Return what has changed since a command was last run in its state folder, whose trials therefore run again."""
    last = recall([*command.overrides], command.config_dirs)
    data = _load(plan.config.folder, last.sweep_id) if last else None
    return stored.changes(stored.load(data, plan.config), data["sources"], plan) if data else []


def state_dir_of(command: Command) -> Path:
    """Return the state folder of a recalled command."""
    return Path(command.overrides[-1].partition("=")[2]).expanduser()


def _not_run(plan: Plan) -> list[str]:
    """Return a line on the grid's last sweep, if none of these trials has been run."""
    folder = plan.config.folder
    last = latest(folder, plan.name)
    if last is None or read_standing(folder).states.keys() & plan.every.keys():
        return []
    lines = [f"none of these trials has run in {folder}; the last sweep of the grid there: {last}"]
    if data := _load(folder, last.sweep_id):
        lines += stored.changes(stored.load(data, plan.config), data["sources"], plan)
    return lines


def _path(state_dir: Path, sweep_id: str) -> Path:
    return state_dir / "plans" / f"{sweep_id}.json"


def _load(state_dir: Path, sweep_id: str) -> Mapping[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(_path(state_dir, sweep_id).read_text(encoding="utf-8")))
    return None
