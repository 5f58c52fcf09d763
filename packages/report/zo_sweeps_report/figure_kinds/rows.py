"""Rows: a table as a figure, its rows below each other, each with its value, its seeds and the published one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.tables.cells import Table, TableCell, place_notes, together
from zo_sweeps.tables.records import described
from zo_sweeps_report.draw import COLORS, PAPER
from zo_sweeps_report.figures import Figure, FigureKind, Panel, Series, axis_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEAN, SEEDS, PUBLISHED = "mean ± standard deviation", "each seed", "published"


@dataclass(frozen=True)
class Rows(FigureKind):
    """A table's rows below each other, its values along x: made by `row_figure`."""

    of_grid: ClassVar[bool] = False

    def size(self, figure: Figure, across: int, down: int) -> tuple[float, float]:
        return 2.4 + max(4.0, 2.4 * across), (0.9 + 0.26 * len(figure.ticks)) * down + 0.4

    def draw(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        for series in panel.series:
            color, y, x = COLORS[series.color], series.x, series.y
            if series.is_published:
                axes.plot(x, y, "D", color=COLORS[1], mfc=PAPER, markersize=5, zorder=4, label=series.label)
            elif series.n == 0:  # each seed
                axes.plot(x, y, "|", color=color, markersize=8, alpha=0.7, zorder=2, label=series.label)
            else:
                errors = [std or 0 for std in series.std]
                axes.errorbar(x, y, xerr=errors, fmt="o", color=color, capsize=0, zorder=3, label=series.label)

    def ticks(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        axes.set_yticks(range(len(figure.ticks)), figure.ticks)
        axes.set_ylim(len(figure.ticks) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)


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
    return Figure(name, spec.title, Rows(), x, "", tuple(panels), labels, notes=tuple(notes), same_scale=True)


def _series(cells: list[TableCell], label: str, value: Callable[[TableCell], float | None]) -> Series:
    found = [(i, number, cell) for i, cell in enumerate(cells) if (number := value(cell)) is not None]
    spread = tuple(cell.published_std if label == PUBLISHED else cell.std for _, _, cell in found)
    places, values = tuple(float(i) for i, _, _ in found), tuple(number for _, number, _ in found)
    n = max((cell.n for _, _, cell in found), default=0)
    return Series(label, 0, places, values, spread, n, is_published=label == PUBLISHED)
