"""Bars: finished settings beside each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zo_sweeps.tables.records import Record
from zo_sweeps_report.draw import INK, look
from zo_sweeps_report.figures import Figure, FigureKind, FigureSpec, Lookup, Panel, Runs, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Bar(FigureKind):
    """A bar per series at every value of x, a category; published values are points."""

    def build(self, spec: FigureSpec, records: Iterable[Record], lookup: Lookup, runs: Runs) -> Figure:
        return points(spec, records, lookup, "bars")

    def draw(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        ours = [series for series in panel.series if not series.is_published]
        places = {series.color: i for i, series in enumerate(ours)}
        width = 0.8 / max(1, len(ours))
        for series in panel.series:
            color, _, marker = look(series)
            shift = (places.get(series.color, 0) - (len(ours) - 1) / 2) * width
            x = [value + shift for value in series.x]
            if series.is_published:
                axes.plot(x, series.y, linestyle="", marker=marker, color=INK, mfc=color, zorder=3, label=series.label)
                continue
            errors = [s or 0 for s in series.std] if any(series.std) else None
            axes.bar(x, series.y, width * 0.92, yerr=errors, color=color, capsize=2, label=series.label)
