"""Cumulative squared gradients of a run, by share of the parameters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.tables.figure_kind import FigureKind, Runs
from zo_sweeps.tables.figures import Figure, FigureSpec, Lookup, Panel, Series, both_labels, panels_of, value_of
from zo_sweeps.tables.records import Record
from zo_sweeps.tables.select import select, settings

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
        panels, empty = [], []
        for key, title in panels_of(spec, mine, lookup):
            here = [record for record in mine if not spec.panels or value_of(record, spec.panels, lookup) == key]
            drawn: list[Series] = []
            for block, name in spec.series:
                selected = select(settings([record for record in here if record.block == block]), spec.rule)
                found = [runs.gradients(record.trial_id) for record in selected.records] if selected else []
                steps = sorted(set.intersection(*map(set, found))) if found else []
                wanted = (next(s for s in steps if s >= part * steps[-1]) for part in spec.at if steps)
                for step in dict.fromkeys(wanted):
                    parts = [run[step] for run in found]
                    both = [part.mean for part in parts], [part.std for part in parts]
                    mean, std = (tuple(map(fmean, zip(*values, strict=True))) for values in both)
                    label = both_labels(spec, name, f"step {step}")
                    drawn.append(Series(label, len(drawn), parts[0].shares, mean, std, len(found)))
                if not steps and any(record.block == block for record in here):
                    empty.append(f"{name} ({title})" if title else name)
            panels.append(Panel(title, tuple(drawn)))
        notes = [f"No finished run yet: {', '.join(empty)}."] if empty else []
        notes += ["Mean over the linear layers; bands: ± one standard deviation over them.", *spec.footnotes]
        y, x = "Cumulative share of the squared gradient", "Share of a layer's parameters"
        return Figure(spec.name, spec.title, spec.kind, x, y, tuple(panels), (), True, tuple(notes))

    def draw(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        from zo_sweeps.tables.draw import banded

        for series in panel.series:
            banded(axes, series, True)

    def ticks(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
