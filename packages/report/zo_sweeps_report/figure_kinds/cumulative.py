"""Cumulative squared gradients of a run, by share of the parameters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.tables.records import Record
from zo_sweeps.tables.select import select, settings
from zo_sweeps_report.draw import banded
from zo_sweeps_report.figures import Figure, FigureKind, FigureSpec, Lookup, Panel, Runs, Series, both_labels, panels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class CumulativeGradient(FigureKind):
    """The cumulative normalized squared gradient of every block's selected setting, at the layout's `at`.

    x is the share of the parameters. Mean over the layers (and seeds), with a band of one standard deviation over the
    layers. A panel without a measurement is empty.
    """

    over_training: ClassVar[bool] = True

    def build(self, spec: FigureSpec, records: Iterable[Record], lookup: Lookup, runs: Runs) -> Figure:
        mine = [record for record in records if record.block in dict(spec.series)]

        def drawn(here: list[Record], block: str, name: str) -> list[Series] | None:
            own = [record for record in here if record.block == block]
            selected = select(settings(own), spec.rule)
            found = [runs.gradients(record.trial_id) for record in selected.records] if selected else []
            steps = sorted(set.intersection(*map(set, found))) if found else []
            if not steps:
                return None if own else []
            series = []
            for step in dict.fromkeys(next(s for s in steps if s >= part * steps[-1]) for part in spec.at):
                parts = [run[step] for run in found]
                both = [part.mean for part in parts], [part.std for part in parts]
                mean, std = (tuple(map(fmean, zip(*values, strict=True))) for values in both)
                label = both_labels(spec, name, f"step {step}")
                series.append(Series(label, 0, parts[0].shares, mean, std, len(found)))
            return series

        panels, empty = panels_of(spec, mine, lookup, drawn)
        panels = [Panel(p.title, tuple(replace(one, color=i) for i, one in enumerate(p.series))) for p in panels]
        notes = [f"No finished run yet: {', '.join(names)}."] if (names := [*chain(*empty)]) else []
        notes += ["Mean over the linear layers; bands: ± one standard deviation over them.", *spec.footnotes]
        y, x = "Cumulative share of the squared gradient", "Share of a layer's parameters"
        return Figure(spec.name, spec.title, spec.kind, x, y, tuple(panels), (), True, tuple(notes))

    def draw(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        for series in panel.series:
            banded(axes, series, True)

    def ticks(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
