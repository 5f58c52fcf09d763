"""Curves: a run over its steps or its time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.core.errors import require_known
from zo_sweeps.tables.records import Record
from zo_sweeps.tables.select import select, settings
from zo_sweeps_report.draw import banded, look, published
from zo_sweeps_report.figures import (
    Behind,
    Figure,
    FigureKind,
    FigureSpec,
    Lookup,
    Panel,
    Runs,
    Series,
    both_labels,
    measured,
    notes_of,
    panels_of,
    split,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES: Mapping[str, tuple[str, float]] = {  # y of a curve -> its label, and one printed unit in recorded units
    "dev/loss": ("Dev loss (nats)", 1.0),
    "dev/metric": ("Dev metric (%)", 0.01),  # if the layout has no measure of it
    "train/loss": ("Training loss (nats)", 1.0),
}
GRADIENTS = "gradients/"  # prefix of a curve <mask>/<density>: the mask's share of the squared gradient
CURVE_X = {"step": "Training steps", "seconds": "Time in training steps (s), without evaluation"}
CURVE_COST = {"seconds": "train_seconds"}  # x of a curve -> the metric that it shows of a run's cost
WINDOWS = 40  # points per curve of training losses: each is the mean over a window of steps


@dataclass(frozen=True)
class Curve(FigureKind):
    """The convergence of every block's selected setting: mean over its seeds, band of one standard deviation.

    x is "step" or "seconds" (a point is drawn at the seeds' mean time), y a name in CURVES or gradients/MASK/DENSITY.
    """

    over_training: ClassVar[bool] = True

    def check(self, spec: FigureSpec, where: str) -> None:
        require_known("x of a curve", [spec.x], CURVE_X, where=where)
        named = [y for y, _ in spec.ys if not y.startswith(GRADIENTS)]
        require_known("y of a curve", named, [*CURVES, f"{GRADIENTS}MASK/DENSITY"], where=where)

    def cost(self, spec: FigureSpec) -> str:
        return CURVE_COST.get(spec.x, "")

    def build(self, spec: FigureSpec, records: Iterable[Record], lookup: Lookup, runs: Runs) -> Figure:
        order = [block for block, _ in spec.series]
        mine = [record for record in records if record.block in order]
        label, unit_size = CURVES.get(spec.ys[0][0], ("Share of the squared gradient", 1.0))
        if spec.measure is not None:
            label, unit_size = measured(spec.measure, spec), spec.measure.unit_size
        windows: set[int] = set()
        behind: Behind = defaultdict(list)

        def drawn(here: list[Record], block: str, name: str) -> list[Series] | None:
            own = [record for record in here if record.block == block]
            selected = select(settings(own), spec.rule)
            if selected is None:
                return None if own else []
            behind[name] += selected.records
            trails = [runs.trail(record.trial_id) for record in selected.records]
            measure = spec.measures.get(selected.records[0].column)
            series = []
            for curve, of_curve in spec.ys:
                found = [run.get(curve, ()) for run in trails]
                if curve == "train/loss" and found and all(found):
                    window = max(1, math.ceil(min(map(len, found)) / WINDOWS))
                    windows.add(window)
                    found = [windowed(run, window) for run in found]
                x, y, std = _mean_run(found, spec.x == "seconds", measure.unit_size if measure else unit_size)
                if x:
                    color, style = _place(spec, curve) if of_curve else (order.index(block), 0)
                    series.append(Series(both_labels(spec, name, of_curve), color, x, y, std, len(found), style=style))
            return series

        panels, empty = panels_of(spec, mine, lookup, drawn)
        notes = notes_of(spec, panels, empty, "bands", behind)
        if max(windows, default=1) > 1:
            sizes = " or ".join(map(str, sorted(windows)))
            notes = (*notes, f"Training losses are means over windows of {sizes} steps.")
        shown, same_scale = split(panels)
        across = CURVE_X[spec.x]
        return Figure(spec.name, spec.title, spec.kind, across, label, shown, notes=notes, same_scale=same_scale)

    def draw(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        for series in panel.series:
            if series.is_published:
                published(axes, series)
            elif series.x == (0.0,):  # nothing was trained
                axes.axhline(series.y[0], color=look(series)[0], linestyle=":", label=series.label)
            else:
                banded(axes, series, series.n > 1)

    def ticks(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        if figure.x_label == CURVE_X["step"]:
            axes.locator_params(axis="x", integer=True)


def _place(spec: FigureSpec, curve: str) -> tuple[int, int]:
    """Return (colour, line style) of one of several curves: one colour per density, one line style per mask."""
    heads, tails = ([name.rpartition("/")[i] for name, _ in spec.curves] for i in (0, 2))
    return list(dict.fromkeys(tails)).index(curve.rpartition("/")[2]), list(dict.fromkeys(heads)).index(
        curve.rpartition("/")[0]
    )


def windowed(run: Sequence[tuple[int, float, float]], size: int = 0) -> list[tuple[int, float, float]]:
    """Return the means of a run over windows of `size` steps, at their last step; 0: of as many as give WINDOWS."""
    size = size or max(1, math.ceil(len(run) / WINDOWS))
    parts = [run[i : i + size] for i in range(0, len(run), size)]
    return [(part[-1][0], part[-1][1], fmean(value for _, _, value in part)) for part in parts]


def _mean_run(
    runs: Sequence[Sequence[tuple[int, float, float]]], by_time: bool, unit_size: float
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float | None, ...]]:
    """Return (x, mean, std) at the steps that all runs have."""
    by_step = [{step: (seconds, value / unit_size) for step, seconds, value in run} for run in runs]
    steps = sorted(set.intersection(*map(set, by_step))) if by_step else []
    at = [[run[step] for run in by_step] for step in steps]
    x = tuple(fmean(t for t, _ in both) if by_time else float(step) for step, both in zip(steps, at, strict=True))
    values = [[value for _, value in both] for both in at]
    return x, tuple(map(fmean, values)), tuple(stdev(v) if len(v) > 1 else None for v in values)
