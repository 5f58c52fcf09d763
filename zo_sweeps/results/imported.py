"""Archives of others in a state folder, and their rows below one's own in the tables of the same grid.

    STATE/imported/DIGEST/   archive.json (whose it is), plan.json, tables.json, journal/, ledger.jsonl

An imported trial is no trial of one's own: none is counted as run, averaged, ranked or selected from with one's own. To
undo an import, remove its folder.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import new_folder, replace_text
from zo_sweeps.plan.build import Plan
from zo_sweeps.record import archive
from zo_sweeps.record.archive import PLAN, TABLES, Archive
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.results import exchange
from zo_sweeps.results import tables as readout
from zo_sweeps.results.exchange import differences
from zo_sweeps.schedule.ledger import Ledger
from zo_sweeps.tables import Table
from zo_sweeps.tables.cells import CellState, TableCell, place_flags

FOLDER, ABOUT = "imported", "archive.json"
NOT_THERE = TableCell(CellState.NOT_PLANNED)


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
            shared = exchange.unpack(source, part, composer)
            for line in differences(shared, composer):
                raise UserError(f"its tables are not those of its logs: {line}", fix="it was changed: ask for it again")
            for name in (PLAN, TABLES):
                (part / name).write_bytes(source.files[name])
            about = {"whose": source.whose, "grid": source.grid}
            replace_text(part / ABOUT, json.dumps(about, ensure_ascii=False))
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}", fix="use state_dir=FOLDER") from None
    return Imported(folder, len(shared.standing.outcomes), new=True)


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
        shared = exchange.unpack(source, Path(name), composer)
        for line in differences(shared, composer):
            raise UserError(f"its tables are not those of its logs: {line}", fix="it was changed: ask for it again")
        with Ledger(state_dir) as ledger, contextlib.closing(JournalStore(state_dir)) as journals:
            outcomes = shared.standing.outcomes.items()
            new = {i: outcome for i, outcome in outcomes if i not in ledger.states and not journals.path(i).exists()}
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
            shared = exchange.read(data, stored, folder, composer)
            theirs = {table.spec.name: table for table in readout.tables(shared.plan, composer, shared.standing)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"an imported archive that cannot be read ({type(error).__name__}: {error})"
            raise UserError(what, where=str(folder), fix="remove that folder, and import the archive again") from None
        found = [below(table, theirs.get(table.spec.name), str(facts["whose"])) for table in found]
    return found


def below(table: Table, theirs: Table | None, whose: str) -> Table:
    """Return a table with the rows of another of the same layout below its own, each labelled with whose it is."""
    if theirs is None:
        return table
    if theirs.spec.measure != table.spec.measure or theirs.spec.rule != table.spec.rule:
        line = f"the imported results of {whose} are not shown: their table has another measure or rule of selection"
        return replace(table, spec=replace(table.spec, footnotes=(*table.spec.footnotes, line)))
    note = f"imported: the results of {whose}, as the archive has them; `verify` computes them again"
    if {*theirs.spec.caveats} != {*table.spec.caveats}:
        caveats = "; ".join(theirs.spec.caveats) or "none of the notes below but those of the grid as written"
        note += f"; other conditions than above: {caveats}"
    return appended(table, theirs, whose, whose.rpartition(" (")[0], note)


def appended(table: Table, theirs: Table, key: str, name: str, note: str) -> Table:
    """Return a table with the rows of another of the same layout below its own.

    `key` tells the rows apart from others, `name` stands after each row's label, `note` is a footnote on each.
    """
    rows, cells, row_notes = list(table.rows), dict(table.cells), dict(table.row_notes)
    footnotes = dict.fromkeys(table.footnotes)
    for block, label in theirs.rows:
        row = f"{key}/{block}"
        rows.append((row, f"{label}, {name}"))
        row_notes[row] = (*theirs.row_notes[block], note)
        own = {(row, column): theirs.cells.get((block, column), NOT_THERE) for column, _ in table.columns}
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
