"""Tables as they are shown: in units that people read, and several of a sweep on a page, where what they share is said
once, below the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zo_sweeps.core.units import scale_of, unit_for
from zo_sweeps.tables.cells import Table, TableCell
from zo_sweeps.tables.records import Measure
from zo_sweeps.tables.text_cells import (
    SELECTED,
    Grid,
    Text,
    capital,
    footnotes,
    heading,
    legend,
    notes,
    own_notes,
    selected_grid,
    title_and_unit,
)

_Cells = dict[tuple[Text, Text], Text]  # (row, column) -> the selected values


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


def printed(tables: Sequence[Table]) -> Page:
    """Return the page of a grid's tables; a single one has its whole heading, and notes in its own order."""
    if len(tables) != 1:
        return together(tables)
    table = readable(tables[0])
    selected = selected_grid(table)
    shown, below = ((heading(table), table),), (tuple(footnotes(table)), tuple(notes(table)))
    return Page("", shown, *below, ((SELECTED, selected),) if selected else ())


def together(tables: Sequence[Table]) -> Page:
    """Return the page of a grid's tables, in units that people read (see `readable`)."""
    numbered, of_all = _numbered([readable(table) for table in tables])
    common = _common([table.spec.title for table in numbered])
    names = [capital(table.spec.title[len(common) :]) for table in numbered]
    headings = [
        ". ".join(
            part.rstrip(".") for part in (capital(title_and_unit(table)[len(common) :]), table.spec.caption) if part
        )
        for table in numbered
    ]
    lines: dict[str, list[str]] = {}
    for name, table in zip(names, numbered, strict=True):
        if definition := table.spec.measure.definition:
            lines.setdefault(f"{capital(definition.rstrip('.'))}.", []).append(name)
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


def _numbered(tables: Sequence[Table]) -> tuple[list[Table], list[str]]:
    """Return the tables with one list of footnotes, without those that every value of them has, and these notes."""
    every = dict.fromkeys(note for table in tables for note in table.footnotes)
    valued = [{*cell.notes} for table in tables for cell in table.cells.values() if cell.mean is not None]
    common = set.intersection(*valued) if len(valued) > 1 else set[str]()
    kept = tuple(note for note in every if note not in common)
    return [replace(table, footnotes=kept) for table in tables], [note for note in every if note in common]


def _selected(grids: Iterable[tuple[str, Grid | None]]) -> list[tuple[str, Grid]]:
    """Merge the grids of selected hyper-parameters that do not contradict each other; name the tables if several stay.

    Two tables of other measures have the same selected settings, unless they select by other rules.
    """
    merged: list[tuple[list[str], _Cells]] = []
    for name, grid in grids:
        if grid is None:
            continue
        own = {
            (row[0], column): cell for row in grid.rows for column, cell in zip(grid.header[1:], row[1:], strict=True)
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
    lines = tuple((row, *(cells.get((row, column), Text("–")) for column in columns)) for row in rows)
    return Grid((Text(""), *columns), lines)


def readable(table: Table) -> Table:
    """Return the table with bytes, times and energies in the unit that fits its largest value; one unit per table.

    A unit in which published numbers are shown stays, and so does one whose largest value is from 1 to 1000.
    """
    spec = table.spec
    shown = [(_unit(spec.of(key)), cell) for (_, key), cell in table.cells.items() if cell.digits is None]
    found: dict[Measure, Measure] = {}
    for measure in dict.fromkeys(spec.of(key) for key, _ in table.columns):
        cells = [cell for unit, cell in shown if unit == _unit(measure)]
        if measure.ratio or any(cell.published is not None for cell in cells):
            continue
        found[measure] = _in_fitting_unit(measure, [cell.mean for cell in cells])
        if measure.beside:
            beside = _in_fitting_unit(measure.beside, [cell.beside for cell in table.cells.values()])
            found[measure] = replace(found[measure], beside=beside)
    if all(before == after for before, after in found.items()):
        return table
    measures = {key: found.get(measure, measure) for key, measure in spec.measures.items()}
    return replace(
        table,
        spec=replace(spec, measure=found.get(spec.measure, spec.measure), measures=measures),
        cells={
            (block, key): _converted(cell, spec.of(key), found.get(spec.of(key), spec.of(key)))
            for (block, key), cell in table.cells.items()
        },
    )


def _unit(measure: Measure) -> tuple[str, float]:
    return measure.unit, measure.unit_size


def _in_fitting_unit(measure: Measure, values: Iterable[float | None]) -> Measure:
    """Return the measure in the unit that fits the largest of some values, which are in the unit that it has."""
    known, largest = scale_of(measure.unit), max((abs(value) for value in values if value is not None), default=0.0)
    if known is None or not largest or 1 <= largest < 1000:
        return measure
    scale, size = known
    new, name = unit_for(largest * size, scale)
    if new == size:
        return measure
    per = measure.unit.partition("/")
    unit_size, digits = measure.unit_size * new / size, 1 if largest * size / new >= 10 else 2
    return replace(measure, unit="".join((name, *per[1:])), unit_size=unit_size, digits=digits)


def _converted(cell: TableCell, before: Measure, after: Measure) -> TableCell:
    if before == after or cell.digits is not None:
        return cell
    factor = before.unit_size / after.unit_size
    beside = cell.beside
    if beside is not None and before.beside and after.beside:
        beside *= before.beside.unit_size / after.beside.unit_size
    values = {seed: value * factor for seed, value in cell.values.items()}
    mean, std = (None if number is None else number * factor for number in (cell.mean, cell.std))
    interval = None if cell.interval is None else (cell.interval[0] * factor, cell.interval[1] * factor)
    return replace(cell, mean=mean, std=std, interval=interval, beside=beside, values=values)
