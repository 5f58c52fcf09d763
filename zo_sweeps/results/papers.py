"""Every table and figure of the papers: the grid behind it, what keeps it from running here, and how far it was run.

What counts is the grid as written: each of its cells has settings and seeds, and so trials. A trial counts if it has a
result, and its cell had the settings of the grid as written when the sweep was launched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import GridDifference, GridTable
from zo_sweeps.core.document import key
from zo_sweeps.core.errors import UserError, require_known
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.plan import stored
from zo_sweeps.plan.as_written import Extents, altered, extents, of_grid
from zo_sweeps.plan.build import Cell, Plan, build, places_of
from zo_sweeps.record.sweep_book import in_folder, launched
from zo_sweeps.results import past_sweeps
from zo_sweeps.results import tables as readout
from zo_sweeps.results.past_sweeps import of_grids
from zo_sweeps.schedule.ledger import Standing, read_standing
from zo_sweeps.schedule.this_host import for_this_host
from zo_sweeps.tables.cells import CellState, Extent, Table
from zo_sweeps.tables.published import names, read

WITH_RESULT = (CellState.DONE, CellState.DIVERGED, CellState.OUT_OF_MEMORY)
NOT_RUN, COMPLETE = "not run", "complete"
At = tuple[str, str]  # (block, column)


@dataclass(frozen=True)
class Item:
    """A table, a figure, or something else that a paper numbers."""

    paper: str = key("short name of the paper")
    name: str = key('its name there ("table2"): PAPER/NAME is its reference')
    display: str = key("name of the paper for display")
    kind: str = key("accuracy, runtime, memory, figure, …")
    caption: str = key("its caption, shortened")
    grids: Sequence[str] = key("the grids that reproduce it")
    why: str = key("why there is no grid", "")
    has_numbers: bool = key("whether its numbers are recorded here", False)
    differs: Sequence[str] = key("what its grids do otherwise than the paper, or where the paper says nothing", ())

    @property
    def reference(self) -> str:
        return f"{self.paper}/{self.name}"


@dataclass(frozen=True)
class Obstacles:
    """What keeps trials of an item's grids from running here."""

    trials: int = key("number of trials of its grids", 0)
    missing: int = key("how many of them cannot run here", 0)
    reasons: Mapping[str, int] = key(
        "reason -> number of trials it holds back, the most frequent first; a trial may have several", dict
    )


@dataclass(frozen=True)
class Deviation:
    """A cell whose value differs from the published one."""

    difference: float = key("our value minus the published one, in the unit")
    unit: str = key("unit of the table's values")
    row: str = key("printed name of its row")
    column: str = key("printed name of its column")
    digits: int = key("decimals that the table prints")


@dataclass(frozen=True)
class ItemProgress:
    """How far an item has been run in a state folder."""

    state: str = key('"not run", "complete" (every trial of the grid as written has a result), or how much has one')
    deviation: Deviation | None = key("the largest one of its whole cells; null, if nothing can be compared", None)
    notes: Sequence[str] = key("differences between the run and the grid as written (its scale, its model)", ())


@dataclass(frozen=True)
class ItemFacts:
    """A table, a figure, or something else that a paper numbers, as it is here."""

    item: Item = key("its entry in conf/paper")
    progress: ItemProgress = key("how far it has been run in the state folder")
    obstacles: Obstacles | None = key("what keeps its trials from running here; null: it was not asked", None)


def paper_facts(
    composer: Composer,
    names: Sequence[str] = (),
    overrides: Sequence[str] = (),
    config_dirs: Sequence[str] = (),
    *,
    planned: bool = True,
) -> list[ItemFacts]:
    """Return the facts of the items that `names` choose (see `named`), in the composer's state folder.

    planned: with their obstacles. Cost: as `standings`, and as `obstacles` if `planned`.
    """
    chosen = named(items(composer.folders), names)
    progress = standings(chosen, composer.run.folder)
    held = obstacles(chosen, overrides, config_dirs) if planned else {}
    return [ItemFacts(item, progress[item.reference], held.get(item.reference)) for item in chosen]


def items(folders: Sequence[Path] | None = None) -> list[Item]:
    """Return every entry of conf/paper, in the order of the files: tables of numbers, figures, then all others."""
    entries = []
    for paper in names("paper", folders):
        data = read("paper", paper, folders)
        for part in ("tables", "figures", "others"):
            for name, entry in (data.get(part) or {}).items():
                grids = entry.get("grid") or ()
                grids = (grids,) if isinstance(grids, str) else tuple(grids)
                lines = (line for grid in grids for line in _differences(grid, f"{paper}/{name}", folders))
                display, why, has_numbers = data["paper"]["name"], entry.get("no_grid", ""), part == "tables"
                head = (paper, name, display, entry["kind"], entry["caption"])
                entries.append(Item(*head, grids, why, has_numbers, tuple(dict.fromkeys(lines))))
    return entries


def _differences(grid: str, reference: str, folders: Sequence[Path] | None) -> Iterator[str]:
    """Yield what a grid does otherwise in the tables with an item's numbers, or, without such a table, anywhere."""
    data = read("grid", grid, folders)
    shown = [*data.get("tables", {}).values(), *data.get("figures", {}).values()]
    own = [part for part in shown if part.get("published") == reference]
    blocks = {block for part in own for block in (*part["rows"], *part.get("over", {}).values())}
    for one in (GridDifference(**each) for part in (data, *(own or shown)) for each in part.get("differs", ())):
        rows = [block for block in one.rows if not own or block in blocks]
        if rows or not one.rows:
            labels = [data["blocks"][block].get("label", block) for block in rows]
            columns = [data.get("columns", {}).get(column, {}).get("label", column) for column in one.columns]
            yield one.line([*labels, *columns])


def named(every: Sequence[Item], names: Sequence[str]) -> list[Item]:
    """Return the items of these papers ("prge") or with these references ("prge/table2"); all without a name."""
    chosen = [item for item in every if not names or item.paper in names or item.reference in names]
    known = {name for item in every for name in (item.paper, item.reference)}
    require_known("table or figure of a paper", names, known, where="papers")
    return chosen


def obstacles(
    of: Sequence[Item], overrides: Sequence[str] = (), config_dirs: Sequence[str] = ()
) -> dict[str, Obstacles]:
    """Return reference -> what keeps its grids from running here, as written except for `overrides` (a data.dir).

    A grid that does not go with the overrides counts as one trial held back by what is wrong. Cost: plans every grid
    once, 0.2 to 3 seconds each.
    """
    planned: dict[str, tuple[int, list[tuple[str, ...]]]] = {}  # grid -> its trials, and the reasons of each held back
    places = None  # the same for all grids: they differ in what they train, not in where it runs
    for grid in dict.fromkeys(grid for item in of for grid in item.grids):
        try:
            composer = Composer([f"+grid={grid}", *overrides], config_dirs)
            places = places or places_of(composer)
            plan = for_this_host(build(composer, places))
            planned[grid] = len(plan.every), list(plan.reasons.values())
        except UserError as error:
            planned[grid] = 1, [(str(error),)]
    found = {}
    for item in of:
        held = [reasons for grid in item.grids for reasons in planned[grid][1]]
        counts = Counter(reason for reasons in held for reason in reasons).most_common()
        found[item.reference] = Obstacles(sum(planned[grid][0] for grid in item.grids), len(held), dict(counts))
    return found


@dataclass(frozen=True)
class Run:
    """A grid as it has been run in a folder.

    Args:
        tables: of the grid as written, by name; shown: the same with the trials that count.
        extents: cell -> (settings, seeds) of the grid as written.
        done: cell -> setting -> the seeds with a result, of the trials that count.
        other: the cells that have a result with other settings.
        notes: how the runs that count differ from the grid as written; other_notes: those that do not count.
    """

    tables: Mapping[str, GridTable]
    shown: Mapping[str, Table]
    extents: Extents
    done: Mapping[At, Mapping[str, frozenset[int]]]
    other: frozenset[At]
    notes: Sequence[str] = ()
    other_notes: Sequence[str] = ()

    def trials(self, at: At) -> tuple[int, int]:
        """Return how many trials of a cell have a result, and how many there are. A seed stands for any other."""
        settings, seeds = self.extents[at]
        done = sum(min(len(one), seeds) for one in self.done.get(at, {}).values())
        return min(done, settings * seeds), settings * seeds

    def extent(self, cells: Sequence[At]) -> Extent:
        """Return how much of cells has a result: settings in all, and seeds of the cell that lacks the most of them."""
        done = {at: self.done.get(at, {}) for at in cells}
        seeds = {at: frozenset().union(*one.values()) for at, one in done.items() if one}
        least = min(seeds, key=lambda at: len(seeds[at]) / self.extents[at][1], default=cells[0])
        return Extent(
            settings=sum(min(len(one), self.extents[at][0]) for at, one in done.items()),
            of_settings=sum(self.extents[at][0] for at in cells),
            seeds=min(len(seeds.get(least, ())), self.extents[least][1]),
            of_seeds=self.extents[least][1],
        )


def standings(of: Sequence[Item], state_dir: Path) -> dict[str, ItemProgress]:
    """Return reference -> progress in `state_dir`, over all sweeps of each grid there.

    Cost: reads the record of each sweep; composes and expands each grid that was run there, plans none.
    """
    standing, sweeps = read_standing(state_dir), launched(state_dir)
    ran: dict[str, Run] = {}
    seen: set[str] = set()
    for grid in dict.fromkeys(grid for item in of for grid in item.grids):
        commands = [in_folder(sweep.command, str(state_dir)) for sweep in sweeps if sweep.grid == grid]
        if commands:
            last = past_sweeps.as_launched(commands[-1])
            records = [stored.record(state_dir, command.sweep_id) for command in commands[:-1]]
            plans = [*(stored.load(data, last.composer.run) for data in records if data is not None), last.plan]
            ran[grid] = run_of(plans, last.composer, standing)
            seen.update(trial_id for plan in plans for trial_id in plan.every)
    lost = of_grids(state_dir, seen, standing)
    return {item.reference: progress_of(item, ran, lost) for item in of}


def run_of(plans: Sequence[Plan], composer: Composer, standing: Standing) -> Run:
    """Return how far a grid has been run by sweeps of it, as launched, the last one (with `composer`) last."""
    last = plans[-1]
    written = composer.as_written() if composer.command_line.grid else None  # None: it cannot be composed here
    grid, found = (written.run.grid, of_grid(written)) if written else (last.grid, extents(last, composer))
    cells: dict[tuple[str, str, str, int], Cell] = {}
    every, other = {}, set[At]()
    notes: dict[bool, dict[str, None]] = {True: {}, False: {}}  # whether it counts -> notes
    for plan in plans:
        changed = altered(plan, composer)
        for cell in plan.cells:
            at, has_result = (cell.block, cell.task), standing.has_result(cell.trial_id)
            if has_result and at in found:
                notes[at not in changed] |= dict.fromkeys(plan.caveats)
            if at in changed and has_result:
                other.add(at)
            where = (*at, fingerprint([cell.hyperparameters]), cell.seed)
            if at in found and at not in changed and (has_result or where not in cells):
                cells[where], every[cell.trial_id] = cell, plan.every[cell.trial_id]
    done: dict[At, dict[str, frozenset[int]]] = {}
    for (block, column, setting, seed), cell in cells.items():
        if standing.has_result(cell.trial_id):
            of_cell = done.setdefault((block, column), {})
            of_cell[setting] = of_cell.get(setting, frozenset()) | {seed}
    columns = {cell.task for cell in cells.values()}
    whole = replace(
        last,
        config=replace(last.config, grid=grid),
        cells=tuple(cells.values()),
        every=every,
        labels={name: label for plan in plans for name, label in plan.labels.items() if name in columns},
        altered=frozenset(),
        extents=found,
    )
    shown = readout.tables(whole, composer, standing) if cells else []
    by_name = dict(zip(grid.tables, shown, strict=False))
    return Run(grid.tables, by_name, found, done, frozenset(other), [*notes[True]], [*notes[False]])


def progress_of(item: Item, ran: Mapping[str, Run], lost: Mapping[str, Sequence[str]]) -> ItemProgress:
    """Return how far an item has been run; lost: grid ("": not known) -> lines on its trials that no command shows."""
    cells = whole = others = 0
    deviations: list[Deviation] = []
    notes = [line for grid in ("", *item.grids) for line in lost.get(grid, ())]
    trials, parts = [], []
    for grid in item.grids:
        if (run := ran.get(grid)) is None:
            continue
        needed: set[At] = set()
        for table, own, at in _cells(run, item.reference):
            needed |= {*own}
            values = _values(table, at) if all(len({*run.trials(one)}) == 1 for one in own) else None
            cells += 1
            whole += values is not None
            others += values is None and any(one in run.other for one in own)
            deviations += values or []
        if needed:
            trials += [run.trials(at) for at in needed]
            parts.append(run.extent(sorted(needed)))
        notes += [*run.notes, *([] if whole == cells else run.other_notes)]
    unrun = sum(grid not in ran for grid in item.grids)
    done, planned = (sum(one[i] for one in trials) for i in (0, 1))
    if not done and not others:
        return ItemProgress(NOT_RUN, notes=tuple(dict.fromkeys(notes)))
    state = COMPLETE if whole == cells and not unrun else f"{whole} of {cells} cells"
    if 0 < done < planned:
        lacks = " and ".join(filter(None, [part.lacks for part in parts]))
        state += f", {done} of {planned} trials" + (f" ({lacks})" if lacks else "")
    if others:
        state += f", {others} with other settings"
    if unrun:
        state += f", {unrun} of {len(item.grids)} grids not run"
    worst = max(deviations, key=lambda one: abs(one.difference), default=None)
    return ItemProgress(state, worst, tuple(dict.fromkeys(notes)))


def _cells(run: Run, reference: str) -> Iterator[tuple[Table | None, list[At], At]]:
    """Yield (table, the cells that it needs, cell) of the grid's tables with an item's numbers, or of all its tables.

    Rows that the paper does not have are left out.
    """
    own = {name for name, table in run.tables.items() if table.published == reference} or {*run.tables}
    for name, table in run.tables.items():
        for block in (block for block, label in table.rows.items() if label and name in own):
            needed = {block, table.over.get(block, block), table.beyond or block}
            for at in (at for at in run.extents if at[0] == block):
                yield run.shown.get(name), [(one, at[1]) for one in needed if (one, at[1]) in run.extents], at


def _values(table: Table | None, at: At) -> list[Deviation] | None:
    """Return the deviations of a cell from the published numbers; None if it lacks a value.

    A table with a column per metric has several for a cell. Those that are measured here and have a published number
    count, or else any.
    """
    if table is None:
        return None
    block, column = at
    columns = {key: label for key, label in table.spec.columns if key == column or key.startswith(f"{column}/")}
    cells = {name: table.cells[block, name] for name in columns if table.spec.of(name).metric}
    with_number = [cell for cell in cells.values() if cell.published is not None]
    has_value = [cell.state in WITH_RESULT for cell in with_number or cells.values()]
    if not (all(has_value) if with_number else any(has_value)):
        return None
    row, measures = dict(table.spec.rows)[block], {name: table.spec.of(name) for name in cells}
    return [
        Deviation(cell.difference, measures[name].unit, row, columns[name], measures[name].digits)
        for name, cell in cells.items()
        if cell.difference is not None
    ]
