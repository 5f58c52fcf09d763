"""Scatter: one measure of the selected settings against another."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.tables.records import Measure, Record
from zo_sweeps.tables.select import select, settings
from zo_sweeps_report.draw import COLORS, FAINT
from zo_sweeps_report.figures import (
    Behind,
    Figure,
    FigureKind,
    FigureSpec,
    Lookup,
    Panel,
    Runs,
    Series,
    axis_label,
    measured,
    notes_of,
    panels_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTER, LINE = 3.8, 7.5  # points: a letter's mean width, a label's height
# Where a label may stand: its left end in widths, its middle in lines, from the point. The first free place is taken.
PLACES = [(side, lines) for lines in (0, 1, -1, 2, -2, 3, -3) for side in (0.0, -1.0, -0.5) if lines or side != -0.5]

CROWD = 16  # points of a panel whose labels can be told apart
BEHIND = 1  # the style of a series that another one beats


@dataclass(frozen=True)
class Scatter(FigureKind):
    """A labelled point per series at the selected setting's means over seeds; x is a measure, as y is.

    Bars show one standard deviation of y. Among more than CROWD points of a panel, those that another point beats in
    x and y are grey and have neither label nor bar.
    """

    x_is_measured: ClassVar[bool] = True

    def build(self, spec: FigureSpec, records: Iterable[Record], lookup: Lookup, runs: Runs) -> Figure:
        across, up = spec.x_measure, spec.measure
        assert across is not None
        assert up is not None
        order = [block for block, _ in spec.series]
        mine = [record for record in records if record.block in order]
        behind: Behind = defaultdict(list)

        def drawn(here: list[Record], block: str, label: str) -> list[Series] | None:
            own = [record for record in here if record.block == block]
            chosen = best.records if (best := select(settings(own), spec.rule)) else ()
            x = [across.value(record.metrics) for record in chosen]
            y = [spec.measures.get(record.column, up).value(record.metrics) for record in chosen]
            if not x or not all(map(math.isfinite, (*x, *y))):
                return None if own else []
            behind[label] += chosen
            spread = stdev(y) if len(y) > 1 else None
            return [Series(label, order.index(block), (fmean(x),), (fmean(y),), (spread,), len(y))]

        panels, empty = panels_of(spec, mine, lookup, drawn)
        crowded = [_behind(panel, across, up) for panel in panels]
        notes = notes_of(spec, panels, empty, "bars", behind, up)
        if crowded != panels:
            notes = ("Grey: another row is at least as good in both.", *notes)
        at = [x for panel in panels for series in panel.series for x in series.x]
        return Figure(
            spec.name,
            spec.title,
            spec.kind,
            spec.x_label or axis_label(across, across.unit, spec.x),
            spec.y_label or measured(up, spec),
            tuple(crowded),
            log_x=bool(at) and max(at) >= 8 * min(at) > 0,
            notes=notes,
        )

    def size(self, figure: Figure, across: int, down: int) -> tuple[float, float]:
        return max(6.4, 5.0 * across), 4.6 * down

    def draw(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        if figure.log_x:
            axes.set_xscale("log")
        for series in panel.series:
            if series.style == BEHIND:
                axes.plot(series.x, series.y, "o", color=FAINT, markersize=2.5)
            else:
                axes.errorbar(series.x, series.y, series.std[0] or 0, fmt="o", color=COLORS[0], ecolor=FAINT, ms=4)
        axes.margins(x=0.2)
        axes.autoscale_view()
        at = axes.transData.transform([(series.x[0], series.y[0]) for series in panel.series] or [(0, 0)])
        scale = 72 / axes.figure.dpi
        left, right = (x * scale for x in (axes.bbox.x0, axes.bbox.x1))
        taken = [(x * scale - 3, y * scale - 3, 6.0, 6.0) for x, y in at]
        for series, (x, y) in zip(panel.series, at, strict=False):
            if series.style == BEHIND:
                continue
            wide = LETTER * len(series.label)
            boxes = [
                (x * scale + side * (wide + 8) + 4, y * scale + lines * LINE - LINE / 2, wide, LINE)
                for side, lines in PLACES
            ]
            free = [b for b in boxes if not any(_overlap(b, other) for other in taken)] or boxes[:1]
            box = next((b for b in free if left <= b[0] and b[0] + wide <= right), free[0])
            taken.append(box)
            offset = (box[0] - x * scale, box[1] - y * scale)
            axes.annotate(series.label, (series.x[0], series.y[0]), offset, textcoords="offset points", fontsize=6)


def _behind(panel: Panel, across: Measure, up: Measure) -> Panel:
    """Return a crowded panel with the points marked that another point is at least as good as in x and y."""
    if len(panel.series) <= CROWD:
        return panel
    signs = [1 if measure.better == "higher" else -1 for measure in (across, up)]
    values = [(signs[0] * series.x[0], signs[1] * series.y[0]) for series in panel.series]
    return replace(
        panel,
        series=tuple(
            replace(series, style=BEHIND)
            if any(x >= mine[0] and y >= mine[1] and (x, y) != mine for x, y in values)
            else series
            for series, mine in zip(panel.series, values, strict=True)
        ),
    )


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]
