"""A sweep as it was launched, from its own record in the state folder: reading needs neither its model nor its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.plan import stored
from zo_sweeps.plan.as_written import beside_written
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.record.commands import Command, latest, recall, unreadable
from zo_sweeps.results.exchange import FOLDER
from zo_sweeps.results.past_trials import lines
from zo_sweeps.schedule.ledger import must_have_run, read_standing


@dataclass(frozen=True)
class ReadablePlan:
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
    stored.save(beside_written(plan, composer), state_dir, sweep_id)


def read(overrides: Sequence[str], config_dirs: Sequence[str] = (), *, has_run: bool = False) -> ReadablePlan:
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
        if has_run and not (composer.run.folder / FOLDER).is_dir():
            must_have_run(composer.run.folder)
        plan = build(composer)
        return _noted(ReadablePlan(plan, composer, command, tuple(_not_run(plan))))
    return of_sweep(command, config_dirs)


def of_sweep(command: Command, config_dirs: Sequence[str] = ()) -> ReadablePlan:
    """Return the plan of a sweep that was run, as it was launched.

    Args:
        command: recalled, with its sweep_id, and the state folder as its last override.
        config_dirs: further folders to look for members in.

    Raises UserError for a command of an earlier version that cannot be composed here.
    """
    reading = as_launched(command, config_dirs)
    data = stored.record(state_dir_of(command), command.sweep_id)
    if data is None or not reading.composer.command_line.grid:
        return _noted(reading)
    try:
        notes = stored.changes(reading.plan, data["sources"], build(reading.composer))
    except UserError as error:
        notes = [_cannot_plan(error)]
    return _noted(replace(reading, notes=tuple(notes)))


def as_launched(command: Command, config_dirs: Sequence[str] = ()) -> ReadablePlan:
    """Return the same without what has changed since. Plans nothing, unless the sweep has no record."""
    data = stored.record(state_dir_of(command), command.sweep_id)
    try:
        composer = Composer(command.overrides, command.config_dirs)
    except UserError as error:
        if data is None:
            raise
        there = [one for one in (*command.config_dirs, *config_dirs) if Path(one).is_dir()]
        composer = Composer([command.overrides[-1]], there)
        return ReadablePlan(stored.load(data, composer.run), composer, command, (_cannot_plan(error),))
    if data is None:  # launched by a version without this record
        return ReadablePlan(build(composer), composer, command)
    return ReadablePlan(stored.load(data, composer.run), composer, command)


def _noted(reading: ReadablePlan) -> ReadablePlan:
    """Return a reading that says too which results of its folder it does not show."""
    folder = reading.plan.config.folder
    lost = [f"{path} cannot be read: its sweep is not found by its command" for path in unreadable(folder)]
    return replace(reading, notes=(*reading.notes, *lost, *lines(reading.plan, read_standing(folder))))


def _cannot_plan(error: UserError) -> str:
    return f"the command cannot be planned here: {' '.join(str(error.errors[0]).split())}"


def since(plan: Plan, command: Command) -> list[str]:
    """Return what has changed since a command was last run in its state folder, whose trials therefore run again."""
    last = recall([*command.overrides], command.config_dirs)
    data = stored.record(plan.config.folder, last.sweep_id) if last else None
    return stored.changes(stored.load(data, plan.config), data["sources"], plan) if data else []


def state_dir_of(command: Command) -> Path:
    """Return the state folder of a recalled command."""
    return Path(command.overrides[-1].partition("=")[2]).expanduser()


def _not_run(plan: Plan) -> list[str]:
    """Return a line on the grid's last sweep, if none of these trials has been run."""
    folder = plan.config.folder
    last, states = latest(folder, plan.name), read_standing(folder).states.keys()
    if states & plan.every.keys() or not (states or last):
        return []
    none = f"none of these trials has run in {folder}"
    if last is None:
        return [f"{none}, which has no record of a sweep of {plan.name}"]
    lines = [f"{none}; the last sweep of the grid there: {last.table}"]
    if data := stored.record(folder, last.sweep_id):
        lines += stored.moved(data["sources"], plan)
    return lines
