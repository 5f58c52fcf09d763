"""Several tables of one sweep on one page: what they share is said once, below the last of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from zo_sweeps.tables.cells import Table
from zo_sweeps.tables.table_units import readable
from zo_sweeps.tables.text_cells import (
    SELECTED,
    Grid,
    Text,
    footnotes,
    legend,
    own_notes,
    selected_grid,
    title_and_unit,
)

_Cells = dict[tuple[str, str], Text]  # (row, column) -> the selected values


@dataclass(frozen=True)
class Page:
    """Tables, and the lines below them.

    Args:
        title: what the titles of all tables begin with; "" for a single table.
        tables: with a heading each ("Runtime (ms/step)"); their footnotes are numbered through the page.
        footnotes, notes: of all tables, each once; one that only some of them have begins with their names.
        selected: the selected hyper-parameters with a title, once where the tables agree.
    """

    title: str
    tables: tuple[tuple[str, Table], ...]
    footnotes: tuple[Text, ...]
    notes: tuple[str, ...]
    selected: tuple[tuple[str, Grid], ...]


def together(tables: Sequence[Table]) -> Page:
    """Return the page of a grid's tables, in units that people read (see `readable`)."""
    numbered, of_all = _without_common(_numbered([readable(table) for table in tables]))
    common = _common([table.spec.title for table in numbered])
    names = [_capital(table.spec.title[len(common) :]) for table in numbered]
    headings = [
        ". ".join(
            part.rstrip(".") for part in (_capital(title_and_unit(table)[len(common) :]), table.spec.caption) if part
        )
        for table in numbered
    ]
    lines: dict[str, list[str]] = {}
    for name, table in zip(names, numbered, strict=True):
        if definition := table.spec.measure.definition:
            lines.setdefault(f"{_capital(definition.rstrip('.'))}.", []).append(name)
    definitions = [f"{', '.join(of)}: {line}" for line, of in lines.items()]
    lines = {}
    for name, table in zip(names, numbered, strict=True):
        for line in own_notes(table):
            lines.setdefault(line, []).append(name)
    shared = [line if len(of) == len(numbered) else f"{', '.join(of)}: {line}" for line, of in lines.items()]
    shared += [f"Every value: {note}." for note in of_all]
    return Page(
        title=common.rstrip(": "),
        tables=tuple(zip(headings, numbered, strict=True)),
        footnotes=tuple(footnotes(numbered[0])) if numbered else (),
        notes=(*definitions, *shared, *legend(numbered)),
        selected=tuple(_selected(zip(names, map(selected_grid, numbered), strict=True))),
    )


def _common(titles: Sequence[str]) -> str:
    """Return what all titles begin with, up to a colon; "" for fewer than two titles."""
    first = titles[0].partition(": ")[0] + ": " if titles else ""
    return first if len(titles) > 1 and all(title.startswith(first) and title != first for title in titles) else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _numbered(tables: Sequence[Table]) -> list[Table]:
    """Return the tables with one list of footnotes for all, and marks that point into it."""
    every = tuple(dict.fromkeys(note for table in tables for note in table.footnotes))

    def moved(table: Table) -> Callable[[Iterable[int]], tuple[int, ...]]:
        return lambda marks: tuple(every.index(table.footnotes[mark]) for mark in marks)

    return [_marked(table, moved(table), every) for table in tables]


def _without_common(tables: Sequence[Table]) -> tuple[list[Table], list[str]]:
    """Return the tables without the footnotes that every value of them has, and these notes."""
    values = [cell for table in tables for cell in table.cells.values() if cell.mean is not None]
    common = set.intersection(*(set(cell.marks) for cell in values)) if len(values) > 1 else set()
    if not common:
        return list(tables), []
    every = tables[0].footnotes
    kept = [note for mark, note in enumerate(every) if mark not in common]

    def moved(marks: Iterable[int]) -> tuple[int, ...]:
        return tuple(kept.index(every[mark]) for mark in marks if mark not in common)

    return [_marked(table, moved, tuple(kept)) for table in tables], [every[mark] for mark in sorted(common)]


def _marked(table: Table, moved: Callable[[Iterable[int]], tuple[int, ...]], footnotes: tuple[str, ...]) -> Table:
    """Return the table with other footnotes, and its marks as `moved` says."""
    return replace(
        table,
        cells={key: replace(cell, marks=moved(cell.marks)) for key, cell in table.cells.items()},
        row_marks={key: moved(marks) for key, marks in table.row_marks.items()},
        column_marks={key: moved(marks) for key, marks in table.column_marks.items()},
        footnotes=footnotes,
    )


def _selected(grids: Iterable[tuple[str, Grid | None]]) -> list[tuple[str, Grid]]:
    """Merge the grids of selected hyper-parameters that do not contradict each other; name the tables if several stay.

    Two tables of other measures have the same selected settings, unless they select by other rules.
    """
    merged: list[tuple[list[str], _Cells]] = []
    for name, grid in grids:
        if grid is None:
            continue
        own = {
            (row[0].text, column.text): cell
            for row in grid.rows
            for column, cell in zip(grid.header[1:], row[1:], strict=True)
        }
        for names, cells in merged:
            if all(cells.get(place, cell) == cell for place, cell in own.items()):
                names.append(name)
                cells.update(own)
                break
        else:
            merged.append(([name], own))
    several = len(merged) > 1
    return [(f"{SELECTED}: {', '.join(names)}" if several else SELECTED, _grid(cells)) for names, cells in merged]


def _grid(cells: _Cells) -> Grid:
    rows, columns = (list(dict.fromkeys(place[i] for place in cells)) for i in (0, 1))
    lines = tuple((Text(row), *(cells.get((row, column), Text("–")) for column in columns)) for row in rows)
    return Grid((Text(""), *map(Text, columns)), lines)
