"""Several tables of one report: one list of footnotes, and each note once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from zo_sweeps.tables.cells import Table
from zo_sweeps.tables.text_cells import notes


def with_common_footnotes(tables: Sequence[Table]) -> list[Table]:
    """Return the tables with the footnotes of all of them as each one's: a mark has one meaning in all tables."""
    common = tuple(dict.fromkeys(note for table in tables for note in table.footnotes))

    def renumbered(table: Table, marks: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(common.index(table.footnotes[mark]) for mark in marks))

    return [
        replace(
            table,
            cells={at: replace(cell, marks=renumbered(table, cell.marks)) for at, cell in table.cells.items()},
            row_marks={key: renumbered(table, marks) for key, marks in table.row_marks.items()},
            column_marks={key: renumbered(table, marks) for key, marks in table.column_marks.items()},
            footnotes=common,
        )
        for table in tables
    ]


def common_notes(tables: Sequence[Table], names: Sequence[str]) -> list[str]:
    """Return the notes of all tables, each once; one that is not of all tables names those that it is of.

    Args:
        names: of the tables, in their order.
    """
    where: dict[str, list[str]] = {}
    for table, name in zip(tables, names, strict=True):
        for note in dict.fromkeys(notes(table)):
            where.setdefault(note, []).append(name)
    return [note if len(of) == len(tables) else f"{', '.join(of)}: {note}" for note, of in where.items()]
