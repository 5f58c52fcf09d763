"""Lines: finished settings along a number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zo_sweeps.tables.records import Record
from zo_sweeps_report.draw import look, published
from zo_sweeps_report.figures import Figure, FigureKind, FigureSpec, Lookup, Panel, Runs, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Line(FigureKind):
    """A line per series over x: numbers, of many sizes on a logarithmic axis, or categories."""

    def build(self, spec: FigureSpec, records: Iterable[Record], lookup: Lookup, runs: Runs) -> Figure:
        return points(spec, records, lookup, "error bars", by_number=True)

    def draw(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        for series in panel.series:
            if series.is_published:
                published(axes, series)
                continue
            color, style, marker = look(series)
            errors, label = [s or 0 for s in series.std], series.label
            axes.errorbar(series.x, series.y, errors, fmt=style, marker=marker, color=color, capsize=3, label=label)

    def ticks(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        if figure.ticks:
            super().ticks(axes, figure, panel)
            return
        if figure.log_x:
            axes.set_xscale("log")
        at = sorted({x for series in panel.series for x in series.x})
        axes.set_xticks(at, [f"{x:g}" for x in at])
        axes.minorticks_off()
