"""A sweep's results as an archive, an archive as a state folder of its own, and archives of others in a state folder.

An archive has no paths of the machine that wrote it, no host names, and nothing of trials that did not end in a result.
Imported, it is a folder, and its rows stand below one's own in the tables of the same grid:

    STATE/imported/DIGEST/   archive.json (whose it is), plan.json, tables.json, journal/, ledger.jsonl

An imported trial is no trial of one's own: none is counted as run, averaged, ranked or selected from with one's own. To
undo an import, remove its folder.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import End, Event, Start, read_event, write_event
from zo_sweeps.core.files import new_folder, replace_text
from zo_sweeps.core.trial import TrialState, parts_of
from zo_sweeps.methods.parts import ModelSource
from zo_sweeps.methods.trial_config import TrialConfig, texts_of
from zo_sweeps.plan import stored
from zo_sweeps.plan.as_written import beside_written
from zo_sweeps.plan.build import Plan
from zo_sweeps.record import archive, received
from zo_sweeps.record.archive import PLAN, TABLES, Archive
from zo_sweeps.record.journal import JournalStore, outcome
from zo_sweeps.results import tables as readout
from zo_sweeps.schedule.ledger import Ledger, Standing, read_standing
from zo_sweeps.tables import Record, Table, TableSpec
from zo_sweeps.tables.cells import CellState, TableCell, place_flags
from zo_sweeps.tables.records import AVERAGE, LARGEST, RANK
from zo_sweeps.tasks.data import DRAWN

SAME = 1e-9  # relative: of numbers that follow from others of the archive
ENTRIES = 2**16  # names and values of a grid, which OmegaConf reads at 10,000 per second; the largest has 1,300 lines
OF_OTHERS = (AVERAGE, LARGEST, RANK)  # columns computed from the others
FOLDER, ABOUT = "imported", "archive.json"
NOT_THERE = TableCell(CellState.NOT_PLANNED)


@dataclass(frozen=True)
class Shared:
    """The contents of an archive in a folder, with the plan and the ledger of a state folder; tables: see `plain`."""

    plan: Plan
    standing: Standing
    journals: JournalStore
    tables: Any


def share(plan: Plan, composer: Composer, path: Path, *, by: str = "", key: Path | None = None) -> Archive:
    """Write the finished trials of a plan, with its tables, into an archive.

    Args:
        plan: as launched; see `recalled.read`.
        by: whose results they are.
        key: file of the private key that signs the archive.

    Raises UserError if no trial has a result, a journal is damaged, or as `archive.write`. Runs no model.
    """
    folder = plan.config.folder
    standing, store = read_standing(folder), JournalStore(folder)
    finished = [trial_id for trial_id in plan.every if standing.has_result(trial_id)]
    if not finished:
        raise UserError(f"no trial of {plan.name} has a result in {folder}", fix="run the grid first")
    data = _without_paths(stored.dump(beside_written(plan, composer)), plan)
    title = data["grid"]["title"] or plan.name  # it may name the model, by its path
    files = {PLAN: _json({**data, "drawn": DRAWN})}
    for trial_id in finished:
        log = [_plain(event) for event in store.read(trial_id, ended=True) if event.kind in received.KINDS]
        files[f"journal/{trial_id}.jsonl"] = b"".join(_json(event) + b"\n" for event in log)
    with TemporaryDirectory(prefix="zo_sweeps-") as name:
        draft = Archive("", plan.name, title, "", "", {**files, TABLES: b"[]"})
        files[TABLES] = _json(tables_of(unpack(draft, Path(name), composer), composer))
    return archive.write(path, files, by=by, grid=plan.name, title=title, key=key)


def unpack(source: Archive, folder: Path, composer: Composer, members: Sequence[str] = ()) -> Shared:
    """Write an archive's journals and a ledger of them into a new or empty folder; return its contents.

    Args:
        composer: of the reader.
        members: the reader's folders with own members. Those that an archive names are never looked at.

    Raises UserError if its contents are not what an archive holds.
    """
    with _of_others():
        if not any(name.startswith("journal/") for name in source.files):
            raise ValueError("no trial with a result")
        journals, ends = JournalStore(folder), {*received.ENDS, TrialState.STOPPED}
        with Ledger(folder) as ledger:
            for name in sorted(source.files):
                if name.startswith("journal/"):
                    trial_id = Path(name).stem
                    texts = source.files[name].decode().split("\n")[:-1]
                    lines = (received.printable(text, json.loads(text)) for text in texts)
                    log = [read_event(received.checked(line, trial_id, ends)) for line in lines]
                    ended = outcome(log)
                    if ended is None or not ended.state.is_result:
                        raise ValueError(f"{name} has no result of its trial")
                    journals.append(trial_id, log)
                    ledger.write(trial_id, ended.state, error=ended.error, outcome=ended)
        journals.close()
        return read(source.json(PLAN), source.json(TABLES), folder, composer, members)


@contextlib.contextmanager
def _of_others() -> Iterator[None]:
    """Raise UserError where an archive, signed or not, lacks a part or holds another value in its place."""
    try:
        yield
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        AssertionError,
    ) as error:
        what = f"the archive cannot be read ({type(error).__name__}: {str(error)[:100]})"
        raise UserError(what, fix="it is damaged, or of another version of zo_sweeps") from None


def read(data: Any, tables: Any, folder: Path, composer: Composer, members: Sequence[str] = ()) -> Shared:
    """Return the contents of an unpacked archive, from its `plan.json` and `tables.json`."""
    data, tables = received.clean(data), received.clean(tables)
    _check_grid([data["grid"], data["labels"]])
    data["parts"]["members"] = [[*members] for _ in data["parts"]["members"]]
    plan = stored.load(data, replace(composer.run, state_dir=str(folder)))
    plan = replace(plan, extents=plan.extents or {})  # of an earlier version's archive, the reader's grid tells nothing
    return Shared(plan, read_standing(folder), JournalStore(folder), tables)


def tables_of(shared: Shared, composer: Composer) -> list[dict[str, Any]]:
    """Return the tables of an archive, computed from its logs, as plain JSON."""
    return [plain(table) for table in readout.tables(shared.plan, composer, shared.standing)]


CELL = ("state", "mean", "std", "n", "beside", "selected", "finished", "planned", "values", "trial_ids")


def plain(table: Table) -> dict[str, Any]:
    """Return a table's labels and cells as JSON."""
    cells: dict[str, dict[str, Any]] = {block: {} for block, _ in table.rows}
    for (block, column), cell in table.cells.items():
        cells[block][column] = {name: getattr(cell, name) for name in CELL}
    spec = table.spec
    labels = {"name": spec.name, "title": spec.title, "unit": spec.measure.unit, "metric": spec.measure.metric}
    made = {**labels, "rows": table.rows, "columns": table.columns, "cells": cells}
    return dict(json.loads(json.dumps(made)))


def _plain(event: Event) -> dict[str, Any]:
    """Return an event as JSON, without what it says about the machine that nobody else needs."""
    kept = write_event(event)
    kept.pop("node", None)
    if isinstance(event, Start):
        kept["versions"] = {name: value for name, value in event.versions.items() if name != "hostname"}
    if isinstance(event, End):
        del kept["outcome"]["traceback"]
    return kept


def _without_paths(data: dict[str, Any], plan: Plan) -> Any:
    """Return a stored plan in which every path of this machine is its last part, or null where a file is looked for."""
    private, local, parts = {str(plan.config.folder)}, ModelSource.LOCAL.value, data["parts"]
    for trial in plan.every.values():
        config = trial.config
        whole = config.to_json()
        model, device = whole["model"], whole["device"]
        private |= {whole["data"].get("dir"), device.get("log"), device.get("client"), *whole.get("members", ())}
        private |= {model.get("path")} if model.get("source") == local else set()
        private |= {name for name, _ in texts_of(config)} if isinstance(config, TrialConfig) else set()
    parts["members"] = [[] for _ in parts["members"]]
    parts["data"] = [{**part, "dir": None} for part in parts["data"]]
    parts["device"] = [{**part, "log": None, "client": None} for part in parts["device"]]
    parts["model"] = [{**part, "path": None} if part["source"] == local else part for part in parts["model"]]
    data["sources"] = {name: {"": files[""]} for name, files in data["sources"].items()}  # files may be others by now
    paths = sorted((path for path in private if path and len(Path(path).parts) > 1), key=len, reverse=True)
    return _replaced(data, paths)


def _replaced(value: Any, paths: Sequence[str]) -> Any:
    if isinstance(value, str):
        for path in paths:
            value = value.replace(path, Path(path).name)
        return value
    if isinstance(value, Mapping):
        return {_replaced(key, paths): _replaced(item, paths) for key, item in value.items()}
    return [_replaced(item, paths) for item in value] if isinstance(value, (list, tuple)) else value


def _check_grid(grid: Any) -> None:
    """Raise ValueError for a text that OmegaConf would replace by something of this machine, or more than ENTRIES."""
    left = [grid]
    for _ in range(ENTRIES):
        if not left:
            return
        value = left.pop()
        if isinstance(value, str) and "${" in value:
            raise ValueError(f"an interpolation: {value}")
        left += [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    raise ValueError(f"a grid of more than {ENTRIES:,} names and values")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def unbacked(plan: Plan, composer: Composer, standing: Standing, n: int) -> Iterator[str]:
    """Yield a line for each cell of the grid's tables that fewer than `n` finished seeds are behind.

    A cell shows the runs of its selected setting; until its search is finished, another may be selected. A setting that
    diverged or ran out of memory in each of its seeds is finished. Cells that the grid does not plan are left out.
    """
    records: dict[str, list[Record]] = {}
    for record in readout.records(plan, standing):
        records.setdefault(record.trial_id, []).append(record)
    for table in readout.tables(plan, composer, standing):
        for block, label in table.rows:
            for column, name in table.columns:
                cell = table.cells[block, column]
                if column not in OF_OTHERS and (why := _lack(table, block, cell, records, n)):
                    yield f"{table.spec.name}, {label}, {name}: {why}"


def _lack(table: Table, block: str, cell: TableCell, records: Mapping[str, Sequence[Record]], n: int) -> str:
    """Return what a cell lacks; "" if it is backed, or the grid does not plan it."""
    if cell.state is CellState.NOT_PLANNED and not cell.planned:
        return ""
    if cell.finished < cell.planned:
        return f"{cell.finished} of {cell.planned} trials have a result"
    if cell.state is CellState.FAILED or not cell.finished:
        return "no trial has a result"
    blocks = {block, table.spec.over.get(block, block), *filter(None, [table.spec.beyond])}
    seeds: dict[str, set[int]] = {}
    for trial_id in cell.trial_ids:
        for record in records.get(trial_id, ()):
            if record.is_result and record.block in blocks:
                seeds.setdefault(record.block, set()).update((record.seed, *record.also))
    fewest = min(map(len, seeds.values()), default=0)
    return "" if fewest >= n else f"{fewest} of {n} seeds"


def differences(shared: Shared, composer: Composer) -> Iterator[str]:
    """Yield what differs between the archive's tables and those that its logs give. Raises UserError as `unpack`."""
    with _of_others():
        computed, there = tables_of(shared, composer), shared.tables if isinstance(shared.tables, list) else []
        if not same_json(computed, shared.tables):
            for table, other in zip(computed, there, strict=False):
                yield from _cells(table, other if isinstance(other, Mapping) else {})
            if len(computed) != len(there):
                yield f"{len(there)} tables in the archive, {len(computed)} from its logs"


def _cells(table: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        if name != "cells" and not same_json(value, other.get(name)):
            there = _brief(other.get(name))
            yield f"table {table['name']}: {name} is {there} in the archive, {_brief(value)} from its plan"
    rows, columns = dict(table["rows"]), dict(table["columns"])
    cells = other.get("cells", {})
    for block, row in table["cells"].items():
        for column, cell in row.items():
            there = cells.get(block, {}).get(column, {}) if isinstance(cells, Mapping) else {}
            for name, value in cell.items():
                if not same_json(value, there.get(name)):
                    where = f"table {table['name']}, {rows[block]}, {columns[column]}"
                    yield f"{where}: {name} is {_brief(there.get(name))} in the archive, {_brief(value)} from its logs"
                    break


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 500 else f"{text[:500]}…"


def same_json(one: Any, other: Any) -> bool:
    """Tell whether two JSON values are equal, numbers but for the last bits, which versions of Python round apart."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, float) and isinstance(other, (int, float)) and not isinstance(other, bool):
        return math.isclose(one, other, rel_tol=SAME) or (one != one and other != other)
    return type(one) is type(other) and bool(one == other)


@dataclass(frozen=True)
class Imported:
    """An archive in a state folder: how many trials it holds, and whether it was not there before."""

    folder: Path
    trials: int
    new: bool


def take_in(source: Archive, state_dir: Path, composer: Composer) -> Imported:
    """Import an archive into a state folder, created if absent; idempotent.

    Raises UserError if its tables are not those of its logs, or the folder cannot be written.
    """
    folder = state_dir / FOLDER / source.digest
    if (folder / ABOUT).is_file():
        return Imported(folder, sum(1 for _ in folder.glob("journal/*/*.jsonl")), new=False)
    try:
        with new_folder(folder) as part:
            shared = _agreeing(source, part, composer)
            for name in (PLAN, TABLES):
                (part / name).write_bytes(source.files[name])
            about = {"whose": source.whose, "grid": source.grid}
            replace_text(part / ABOUT, json.dumps(about, ensure_ascii=False))
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}", fix="use state_dir=FOLDER") from None
    return Imported(folder, len(shared.standing.outcomes), new=True)


def _agreeing(source: Archive, folder: Path, composer: Composer) -> Shared:
    """Unpack an archive. Raises UserError if its tables are not those of its logs."""
    shared = unpack(source, folder, composer)
    for line in differences(shared, composer):
        raise UserError(f"its tables are not those of its logs: {line}", fix="it was changed: ask for it again")
    return shared


def go_on(source: Archive, state_dir: Path, composer: Composer, key: Path) -> int:
    """Make the trials of one's own archive trials of a state folder, so that a sweep goes on there; return how many.

    Those that have a result or a journal there are left as they are.

    Args:
        key: the private key that signed the archive: nobody else's results become one's own.

    Raises UserError if another key signed it, its tables are not those of its logs, or the folder is in use.
    """
    if source.key != archive.public_of(key):
        what = f"signed by {archive.key_fingerprint(source.key)}" if source.key else "not signed"
        raise UserError(f"{what}, and not by {key}", where="--own", fix="omit --own: it shows others' rows below yours")
    with TemporaryDirectory(prefix="zo_sweeps-") as name:
        shared = _agreeing(source, Path(name), composer)
        with Ledger(state_dir) as ledger, contextlib.closing(JournalStore(state_dir)) as journals:
            outcomes = shared.standing.outcomes.items()
            new = {i: outcome for i, outcome in outcomes if not ledger.has_result(i) and not journals.path(i).exists()}
            for trial_id, outcome in new.items():
                journals.append(trial_id, shared.journals.read(trial_id))
                ledger.write(trial_id, outcome.state, error=outcome.error, outcome=outcome)
    return len(new)


def with_imported(tables: Sequence[Table], plan: Plan, composer: Composer) -> list[Table]:
    """Return a grid's tables with the rows of every imported archive of the same grid below one's own, labelled."""
    found = list(tables)
    for about in sorted((plan.config.folder / FOLDER).glob(f"*/{ABOUT}")):
        folder = about.parent
        try:
            facts = json.loads(about.read_text(encoding="utf-8"))
            if facts["grid"] != plan.name:
                continue
            data, stored = (json.loads((folder / name).read_text(encoding="utf-8")) for name in (PLAN, TABLES))
            shared = read(data, stored, folder, composer)
            theirs = {table.spec.name: table for table in readout.tables(shared.plan, composer, shared.standing)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            # It was whole when it was imported: its folder was changed since, or this version reads other keys.
            what = f"an imported archive that cannot be read ({type(error).__name__}: {error})"
            raise UserError(what, where=str(folder), fix="remove that folder, and import the archive again") from None
        whose, other = str(facts["whose"]), other_files(plan, shared.plan)
        found = [below(table, theirs.get(table.spec.name), whose, folder.name, other) for table in found]
    return found


def other_files(plan: Plan, theirs: Plan) -> list[str]:
    """Return the models and data sets that two plans call alike and that have other contents in each."""
    own, there = (_fingerprints(one) for one in (plan, theirs))
    return [name for name in own if name in there and own[name].isdisjoint(there[name])]


def _fingerprints(plan: Plan) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for what, key in (("the model", "model"), ("the data of", "task")):
        for part in {id(one): one for one in (parts_of(t.config)[key] for t in plan.every.values())}.values():
            fields = part if isinstance(part, Mapping) else vars(part)  # as stored, or read
            if fields["fingerprint"]:
                found.setdefault(f"{what} {fields['name']}", set()).add(fields["fingerprint"])
    return found


def below(table: Table, theirs: Table | None, whose: str, key: str, other: Sequence[str] = ()) -> Table:
    """Return a table with the rows of another of the same layout below its own, each labelled with whose it is.

    `key` tells an archive apart from others, also of the same author; `other` names what has other contents there.
    """
    if theirs is None:
        return table
    if not _comparable(theirs.spec, table.spec):
        line = f"the imported results of {whose} are not shown: their table has another measure or rule of selection"
        return replace(table, spec=replace(table.spec, footnotes=(*table.spec.footnotes, line)))
    note = f"imported: the results of {whose}, as the archive has them; `verify` computes them again"
    if other:
        note += f"; not measured on the same files as above: {', '.join(other)}"
    if theirs.spec.caveats or table.spec.caveats:  # in a CSV, each line has its own
        note += f"; its conditions: {'; '.join(theirs.spec.caveats) or 'those of the grid as written'}"
    return appended(table, theirs, key, whose.rpartition(" (")[0], note)


def _comparable(one: TableSpec, other: TableSpec) -> bool:
    """Tell whether the cells of two tables say the same: in columns and rows of both, and up to what time or target."""
    return (
        (one.rule, one.caption, one.beyond) == (other.rule, other.caption, other.beyond)
        and all(one.of(column) == other.of(column) for column in dict(one.columns).keys() & dict(other.columns))
        and all(one.over[row] == other.over[row] for row in one.over.keys() & other.over)
    )


def appended(table: Table, theirs: Table, key: str, name: str, note: str) -> Table:
    """Return a table with the rows of another of the same layout below its own.

    `key` tells the rows apart from others, `name` stands after each row's label, `note` is a footnote on each. Ranks,
    which are among the rows of one table, are left out, and means over columns if the other table has others.
    """
    rows, cells, row_notes = list(table.rows), dict(table.cells), dict(table.row_notes)
    apart = (RANK, AVERAGE, LARGEST)[
        : None if dict(theirs.spec.columns).keys() != dict(table.spec.columns).keys() else 1
    ]
    footnotes = dict.fromkeys(table.footnotes)
    for block, label in theirs.rows:
        row = f"{key}/{block}"
        rows.append((row, f"{label}, {name}"))
        row_notes[row] = (*theirs.row_notes[block], note)
        there = {column: theirs.cells.get((block, column)) for column, _ in table.columns if column not in apart}
        own = {(row, column): there.get(column) or NOT_THERE for column, _ in table.columns}
        cells |= own
        footnotes |= dict.fromkeys(chain(row_notes[row], *(cell.notes for cell in own.values())))

    def added(notes: Sequence[str], note: str) -> tuple[str, ...]:
        footnotes.setdefault(note)
        return tuple(sorted({*notes, note}, key=list(footnotes).index))

    for flag in place_flags([row for row, _ in rows], cells, table.spec.may_differ):
        for row in flag.rows:
            if not flag.columns:
                row_notes[row] = added(row_notes[row], flag.note)
            for column in flag.columns:
                cells[row, column] = replace(cells[row, column], notes=added(cells[row, column].notes, flag.note))
    return replace(table, rows=tuple(rows), cells=cells, row_notes=row_notes, footnotes=tuple(footnotes))
