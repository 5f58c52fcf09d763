"""A table as a figure: its rows below each other, each with its value, its seeds and the published one."""

from __future__ import annotations

from collections.abc import Callable

from zo_sweeps.tables.cells import Table, TableCell
from zo_sweeps.tables.figures import Figure, Panel, Series, axis_label
from zo_sweeps.tables.placed import place_notes, together
from zo_sweeps.tables.records import described

MEAN, SEEDS, PUBLISHED = "mean ± standard deviation", "each seed", "published"


def row_figure(table: Table, name: str) -> Figure:
    """Return the figure of a table, of kind "rows": a panel per column of its own measure, a line per row.

    A cell without a value leaves its line empty. Rows that are short of results are named below.
    """
    spec, columns = table.spec, table.main_columns
    panels = []
    for key, label in columns:
        cells = [table.cells[block, key] for block, _ in table.rows]
        every = [(i, value) for i, cell in enumerate(cells) for value in dict.fromkeys(cell.values.values())]
        seeds = [(i, value) for i, value in every if cells[i].n > 1]
        parts = [
            _series(cells, MEAN, lambda cell: cell.mean),
            Series(SEEDS, 0, tuple(float(i) for i, _ in seeds), tuple(y for _, y in seeds), (None,) * len(seeds), 0),
            _series(cells, PUBLISHED, lambda cell: cell.published),
        ]
        panels.append(Panel(label if len(columns) > 1 else "", tuple(part for part in parts if part.x)))
    unfinished = [
        label for block, label in table.rows if any(table.cells[block, key].mean is None for key, _ in columns)
    ]
    notes = [f"Without a value: {', '.join(unfinished)}."] if unfinished else []
    placed = {label: together(table.cells[block, key] for key, _ in columns) for block, label in table.rows}
    noted = place_notes(placed, spec.may_differ) if any(placed.values()) else {}
    notes += [f"{', '.join(rows)}: {note}." for note, rows in noted.items()]
    measures = {key: measure for key, measure in spec.measures.items() if key in dict(columns)}
    unit = described(spec.measure, measures, columns, spec.measure.name)
    x = axis_label(spec.measure, unit, spec.layout or spec.measure.metric)
    labels = tuple(label for _, label in table.rows)
    return Figure(name, spec.title, "rows", x, "", tuple(panels), labels, notes=tuple(notes))


def _series(cells: list[TableCell], label: str, value: Callable[[TableCell], float | None]) -> Series:
    found = [(i, number, cell) for i, cell in enumerate(cells) if (number := value(cell)) is not None]
    spread = tuple(cell.published_std if label == PUBLISHED else cell.std for _, _, cell in found)
    places, values = tuple(float(i) for i, _, _ in found), tuple(number for _, number, _ in found)
    n = max((cell.n for _, _, cell in found), default=0)
    return Series(label, 0, places, values, spread, n, is_published=label == PUBLISHED)
