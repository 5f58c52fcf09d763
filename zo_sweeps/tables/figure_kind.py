"""The axis `figure_kind`: which points a figure has, and how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.core.errors import unknown
from zo_sweeps.core.events import SquaredGradients
from zo_sweeps.methods.definition import Definition
from zo_sweeps.methods.registry import members

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from zo_sweeps.tables.figures import Figure, FigureSpec, Lookup, Panel
    from zo_sweeps.tables.records import Record

Cumulative = Mapping[int, SquaredGradients]  # of one run, by step
Trail = Mapping[str, Sequence[tuple[int, float, float]]]  # of one run: name in CURVES -> (step, seconds, value)


@dataclass(frozen=True)
class Runs:
    """What a figure over training reads of runs, by trial id."""

    trail: Callable[[str], Trail]
    gradients: Callable[[str], Cumulative]


@dataclass(frozen=True)
class FigureKind(Definition):
    """A kind of figure: `build` makes its contents from a grid's finished trials, `draw` draws one panel."""

    axis: ClassVar[str] = "figure_kind"
    over_training: ClassVar[bool] = False  # a series is a run, read from its journal; x and y are not a trial's keys
    of_table: ClassVar[bool] = False  # made of a printed table's rows: no grid asks for it

    def check(self, spec: FigureSpec, where: str) -> None:
        """Raise UserError if the layout has a value that this kind cannot draw."""

    def cost(self, spec: FigureSpec) -> str:
        """Return the metric whose cost the x axis shows; "" for none."""
        return ""

    def build(self, spec: FigureSpec, records: Iterable[Record], lookup: Lookup, runs: Runs) -> Figure:
        """Return the figure's contents.

        Args:
            lookup: (record, key) -> the trial's value of a key such as "estimator.q", None if it has none.
        """
        raise NotImplementedError

    def size(self, figure: Figure, across: int, down: int) -> tuple[float, float]:
        """Return width and height in inches of a figure with its panels in so many columns and rows."""
        from zo_sweeps.tables.draw import LEGEND, turn

        wide = 1.0 + len(figure.ticks) / 8 if figure.ticks and across == 1 else 1.0
        labels = {series.label for panel in figure.panels for series in panel.series}
        legend = 0.21 * math.ceil(len(labels) / LEGEND) if len(labels) > 1 else 0.0
        return max(4.8, 3.4 * across) * min(wide, 2.2), (2.9 + 0.4 * bool(turn(figure))) * down + legend

    def draw(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        """Draw a panel's series into matplotlib's axes; title and labels are there."""
        raise NotImplementedError

    def ticks(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        """Set the ticks of the x axis."""
        from zo_sweeps.tables.draw import turn

        if figure.ticks:
            angle = turn(figure)
            axes.set_xticks(range(len(figure.ticks)), figure.ticks, rotation=angle, ha="right" if angle else "center")


def kind_of_grid(name: str, where: str) -> FigureKind:
    """Return the kind that a grid's figure names. Raises UserError for an unknown one, or one of a table's rows."""
    kinds = {one: kind() for one, kind in members("figure_kind").items()}
    offered = {one: kind for one, kind in kinds.items() if isinstance(kind, FigureKind) and not kind.of_table}
    if name not in offered:
        raise unknown("kind of figure", name, offered, where=where)
    return offered[name]
