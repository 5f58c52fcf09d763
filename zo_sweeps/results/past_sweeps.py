"""A sweep as it was launched, from its own record in the state folder, and the finished trials that no command shows.

Reading needs neither model nor data. A trial stays in the ledger and its journal whatever becomes of its id: those that
no command shows are of another version, or their record is lost. What such a trial was is told by the record or the
book of its sweep, and who made it by its journal. None is averaged, ranked or selected from with today's trials.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.document import key
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Start
from zo_sweeps.core.trial import StoredConfig, Trial
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan import stored
from zo_sweeps.plan.as_written import beside_written
from zo_sweeps.plan.build import Cell, Plan, build
from zo_sweeps.record.journal import JournalStore, first_event
from zo_sweeps.record.sweep_book import BookContents, Command, Launched, book, latest, recall, recallable, unreadable
from zo_sweeps.results import tables as readout
from zo_sweeps.results.exchange import FOLDER, appended
from zo_sweeps.results.trial_record import TrialRecord, flat, recorded
from zo_sweeps.schedule.ledger import Standing, must_have_run, read_standing
from zo_sweeps.tables import Table
from zo_sweeps.tables.cells import CellState

NOTE = "of other ids than the rows above, and in none of them: made by {}"


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


@dataclass(frozen=True)
class EarlierTrial(TrialRecord):
    """A finished trial of the state folder that no command shows."""

    made_by: str = key("commit that made it, or the version of an installed copy; empty: not known")
    like: str = key("the sweep's trial with the same value of every setting that both record; empty: none")


@dataclass(frozen=True)
class PastTrials:
    """Such trials of one sweep and version, with their cells in its grid; "" where something is not known."""

    ids: tuple[str, ...]
    sweep_id: str
    made_by: str
    grid: str = ""
    command: str = ""
    trials: Mapping[str, Trial] = field(default_factory=dict)
    cells: Sequence[Cell] = ()


def earlier(plan: Plan, standing: Standing) -> list[PastTrials]:
    """Return the finished trials of a plan's state folder that neither the plan nor a recorded sweep shows.

    Cost: nothing without such trials; with them, the records of the folder's sweeps and the first lines of journals.
    """
    groups = _lost(plan.config.folder, plan.every, plan.name, standing)
    return [_group(plan, sweep_id, made_by, ids) for (sweep_id, made_by), ids in groups.items()]


def of_grids(folder: Path, shown: Collection[str], standing: Standing) -> dict[str, list[str]]:
    """Return grid -> lines on such trials, where `shown` are those that have a row; "": of a grid that is not known."""
    found: dict[str, list[str]] = {}
    for (sweep_id, made_by), ids in _lost(folder, shown, "", standing).items():
        data, contents = stored.record(folder, sweep_id), _book(folder, sweep_id)
        grid = data["grid"]["name"] if data else contents.sweep.grid if contents else ""
        found.setdefault(grid, []).append(_line(len(ids), made_by, grid))
    return found


def _lost(folder: Path, shown: Collection[str], grid: str, standing: Standing) -> dict[tuple[str, str], list[str]]:
    """Return (sweep_id, who made it) -> finished trials that are not shown, and of no sweep that its command shows."""
    lost = [trial_id for trial_id in standing.states if standing.has_result(trial_id) and trial_id not in shown]
    kept = _kept(folder, grid) if lost else {}
    lost = [trial_id for trial_id in lost if standing.sweeps.get(trial_id) not in kept]
    if lost:
        records = [stored.record(folder, sweep_id) or {} for sweep_id in kept]
        reached = {trial["trial_id"] for record in records for trial in record.get("trials", ())}
        lost = [trial_id for trial_id in lost if trial_id not in reached]
    groups: dict[tuple[str, str], list[str]] = {}
    for trial_id in lost:
        groups.setdefault((standing.sweeps.get(trial_id, ""), _made_by(folder, trial_id)), []).append(trial_id)
    return groups


def lines(plan: Plan, standing: Standing) -> list[str]:
    """Return a line on these trials for each version and grid, and one for each other sweep of the plan's grid."""
    folder, found = plan.config.folder, _counts(plan, earlier(plan, standing))
    shown = Counter(
        standing.sweeps.get(trial_id, "")
        for trial_id in standing.states
        if standing.has_result(trial_id) and trial_id not in plan.every
    )
    for sweep_id, sweep in _kept(folder, plan.name).items() if shown else ():
        if sweep.grid == plan.name and (n := shown[sweep_id]):
            found.append(f"{_finished(n)} of another sweep of this grid: {sweep.command.table}")
    return found


def listed(plan: Plan, standing: Standing) -> list[EarlierTrial]:
    """Return these trials with their scores."""
    groups = earlier(plan, standing)
    alike = {trial_id: (trial, _used(trial)) for trial_id, trial in plan.every.items()} if groups else {}
    return [
        EarlierTrial(
            **{**recorded(group.trials.get(trial_id, Trial(trial_id, StoredConfig({}))), standing), "grid": group.grid},
            made_by=group.made_by,
            like=_like(group.trials[trial_id], alike) if trial_id in group.trials else "",
        )
        for group in groups
        for trial_id in group.ids
    ]


def with_earlier(tables: Sequence[Table], plan: Plan, composer: Composer, standing: Standing) -> list[Table]:
    """Return a grid's tables with rows of these trials below one's own, labelled with who made them.

    No published number stands beside them: nobody knows whether their settings were those of the grid as written.
    """
    found, groups = list(tables), earlier(plan, standing)
    all_other = frozenset((block, column) for block in plan.grid.blocks for column in plan.labels)
    unknown = replace(plan, altered=all_other, extents={})
    for group in groups:
        if group.grid not in ("", plan.name):
            continue
        placed = [cell for cell in group.cells if cell.block in plan.grid.blocks and cell.task in plan.labels]
        then = replace(plan, cells=tuple(placed), every=group.trials, reasons={})
        theirs = {table.spec.name: table for table in readout.tables(unknown, composer, standing, of=then)}
        note = NOTE.format(_who(group.made_by)) + (f", {group.command}" if group.command else "")
        own = f"{group.sweep_id}/{group.made_by}"
        found = [
            appended(table, _unpublished(theirs[table.spec.name]), own, f"made by {_who(group.made_by)}", note)
            for table in found
        ]
    notes = _counts(plan, groups)
    return [replace(table, spec=replace(table.spec, footnotes=(*table.spec.footnotes, *notes))) for table in found]


def _unpublished(table: Table) -> Table:
    """Return a table with the rows alone that have a measurement, without published numbers."""
    cells = {at: replace(cell, published=None, published_std=None) for at, cell in table.cells.items()}
    without = (CellState.NOT_PLANNED, CellState.UNMEASURED)
    measured = {block for (block, _), cell in cells.items() if cell.planned and cell.state not in without}
    return replace(table, rows=tuple(row for row in table.rows if row[0] in measured), cells=cells)


def _kept(folder: Path, grid: str) -> dict[str, Launched]:
    """Return sweep_id -> sweep, of those that their commands show. A record of this grid must be readable."""
    return {
        sweep.command.sweep_id: sweep
        for sweep in recallable(folder)
        if (
            stored.record(folder, sweep.command.sweep_id) is not None
            if sweep.grid == grid
            else stored.has_record(folder, sweep.command.sweep_id)
        )
    }


def _group(plan: Plan, sweep_id: str, made_by: str, ids: Sequence[str]) -> PastTrials:
    """Return what the record of a sweep says of some of its trials, or else its book."""
    folder, group = plan.config.folder, PastTrials(tuple(ids), sweep_id, made_by)
    if contents := _book(folder, sweep_id):
        trials, info = {trial.trial_id: trial for trial in contents.trials if trial.trial_id in ids}, contents.sweep
        group = replace(group, grid=info.grid, command=info.command, trials=trials, cells=_cells(plan, trials))
    with contextlib.suppress(UserError, KeyError, TypeError):
        if data := stored.record(folder, sweep_id):
            then = stored.load(data, plan.config)
            trials = {trial_id: then.every[trial_id] for trial_id in ids if trial_id in then.every}
            cells = [cell for cell in then.cells if cell.trial_id in trials]
            group = replace(group, grid=then.name, trials=trials, cells=cells)
    return group


def _book(folder: Path, sweep_id: str) -> BookContents | None:
    with contextlib.suppress(UserError, KeyError, TypeError):  # damaged, or of a version with other keys
        return book(folder, sweep_id)
    return None


def _cells(plan: Plan, trials: Mapping[str, Trial]) -> list[Cell]:
    """Return the cells of trials whose plan is lost: the settings that differ within one, seeds aside, are searched."""
    columns = {name: column for column, name in plan.labels.items()}
    settings = {trial_id: flat(trial.config.to_json()) for trial_id, trial in trials.items()}
    by_cell: dict[tuple[str, str], list[str]] = {}
    for trial_id, trial in trials.items():
        _, *parts = trial.label.split(" · ")  # row, column, values, seed
        by_cell.setdefault((trial.block, columns.get("".join(parts[:1]), trial.task)), []).append(trial_id)
    found = []
    for (block, column), ids in by_cell.items():
        names = {name for trial_id in ids for name in settings[trial_id] if name.rpartition(".")[2] != "seed"}
        values = {name: [settings[trial_id].get(name) for trial_id in ids] for name in names}
        searched = sorted(name for name, own in values.items() if any(one != own[0] for one in own))
        for trial_id in ids:
            own = {name: settings[trial_id].get(name) for name in searched}
            found.append(Cell(block, column, settings[trial_id].get("seed", 0), own, trial_id))
    return found


def _like(trial: Trial, today: Mapping[str, tuple[Trial, Mapping[str, Any]]]) -> str:
    """Return the id of the trial that has the same value of every setting that both record, "" for none or several."""
    own = flat(trial.config.to_json())
    same = [
        trial_id
        for trial_id, (other, settings) in today.items()
        if other.block == trial.block and all(settings[name] == own[name] for name in own.keys() & settings.keys())
    ]
    return same[0] if len(same) == 1 else ""


def _used(trial: Trial) -> dict[str, Any]:
    """Return the settings that a trial's kind uses, by their dotted names; all of them, if it cannot be read here."""
    config, whole = trial.config, flat(trial.config.to_json())
    return {name: it for name, it in whole.items() if not isinstance(config, TrialConfig) or config.uses(name)}


def _made_by(folder: Path, trial_id: str) -> str:
    start = None
    with contextlib.suppress(UserError):  # damaged: its reader says so
        start = first_event(JournalStore(folder).path(trial_id))
    versions = start.versions if isinstance(start, Start) else {}
    if commit := versions.get("git_commit"):
        return f"{commit[:7]}{' with local changes' if versions.get('git_dirty') else ''}"
    number = versions.get("packages", {}).get("zo_sweeps", "")
    return f"zo_sweeps {number}" if number else ""


def _who(made_by: str) -> str:
    return made_by or "a version that no journal names"


def _finished(n: int) -> str:
    return "1 finished trial is" if n == 1 else f"{n} finished trials are"


def _counts(plan: Plan, groups: Sequence[PastTrials]) -> list[str]:
    """Return a line for each version and grid that trials are of."""
    counts: Counter[tuple[str, str]] = Counter()
    for group in groups:
        counts[group.made_by, group.grid] += len(group.ids)
    return [_line(n, made_by, "" if grid == plan.name else grid) for (made_by, grid), n in counts.items()]


def _line(n: int, made_by: str, grid: str) -> str:
    where = f"`table +grid={grid}` shows them" if grid else "`status` lists them"
    return f"{_finished(n)} of other ids: made by {_who(made_by)}; {where}"
