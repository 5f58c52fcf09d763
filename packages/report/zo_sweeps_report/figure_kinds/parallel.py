"""Parallel coordinates: what was searched along several axes together, a line per setting, to what selects it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from zo_sweeps.tables.select import is_number, select, settings
from zo_sweeps_report.draw import INK, look
from zo_sweeps_report.figure_kinds.search import RUNS, SELECTED, TICKS, Compared, searched
from zo_sweeps_report.figures import Figure, FigureKind, Panel, Series, split

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Parallel(FigureKind):
    """A vertical axis per searched value and one for the metric that selects: made by `parallel_figures`."""

    of_grid: ClassVar[bool] = False

    def draw(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        axes.set_yticks([])
        axes.grid(False)
        of_axes = [sorted({s.y[i] for one in figure.panels for s in one.series}) for i in range(len(figure.ticks))]
        heights = [_heights(values) for values in of_axes]
        for x, (values, height) in enumerate(zip(of_axes, heights, strict=True)):
            axes.axvline(x, color=INK, linewidth=0.8)
            for value in values if len(values) <= TICKS else (values[0], values[-1]):
                axes.annotate(f"{value:.3g}", (x, height[value]), (3, 2), textcoords="offset points", fontsize=7)
        for series in panel.series:
            color, style, _ = look(series)
            chosen = series.mark == SELECTED
            y = [height[value] for value, height in zip(series.y, heights, strict=True)]
            label = series.label if chosen else None
            axes.plot(
                series.x, y, style, color=color, alpha=1 if chosen else 0.35, lw=2.5 if chosen else 1, label=label
            )


def _heights(values: Sequence[float]) -> dict[float, float]:
    """Return value -> its place between 0 and 1: of logarithms where all are positive and span a decade."""
    log = values[0] > 0 and values[-1] >= 10 * values[0]
    along = {value: math.log(value) if log else value for value in values}
    low, high = along[values[0]], along[values[-1]]
    return {value: (at - low) / (high - low) if high > low else 0.5 for value, at in along.items()}


def parallel_figures(rows: Sequence[tuple[str, str]], compared: Compared) -> list[Figure]:
    """Return a figure for each set of two or more axes that rows search together, with a panel per column.

    A line is a setting's mean over the seeds at which settings are compared. rows: (key, label) in order.
    """
    of_axes: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    along = searched(record for record in compared.records if record.seed in compared.seeds)
    for block, label in rows:
        if len(axes := tuple(key for key, blocks in along.items() if block in blocks)) > 1:
            of_axes.setdefault(axes, []).append((block, label))
    figures, metric = list[Figure](), compared.metric
    note = "Line: a setting, its mean over the seeds at which settings are compared; bold: the selected one"
    for axes, mine in of_axes.items():
        if panels := compared.panels(partial(_lines, axes, mine, compared)):
            words = [key.rpartition(".")[2] for key in axes]
            title, ticks = f"{metric.partition(' (')[0]} by {', '.join(words)}", (*words, metric)
            name, shown = "_".join(axes).replace(".", "_"), split(panels)[0]
            figures.append(Figure(name, title, Parallel(), "", "", shown, ticks, notes=(note,)))
    return figures


def _lines(axes: Sequence[str], rows: Sequence[tuple[str, str]], compared: Compared, column: str) -> list[Series]:
    """Return a line per setting of each row in a column."""
    series, metric = list[Series](), compared.rule.metric
    for color, (block, label) in enumerate(rows):
        mine = [record for record in compared.records if (record.block, record.column) == (block, column)]
        tried = settings(record for record in mine if record.seed in compared.seeds)
        chosen = select(settings(mine), compared.rule)  # by all of its seeds, as the tables' cells
        for one in tried:
            at: list[Any] = [one.hyperparameters.get(key) for key in axes]
            mean = one.mean(metric)
            if one.has_succeeded and mean is not None and all(map(is_number, at)):
                y = (*map(float, at), compared.measures[column].value({metric: mean}))
                is_chosen = chosen is not None and one.hyperparameters == chosen.hyperparameters
                mark = SELECTED if is_chosen else RUNS
                series.append(Series(label, color, tuple(range(len(y))), y, mark=mark))
    return series
