"""What a figure is made of: its layout, its panels and series, and the notes below it. Plain data; `draw` draws it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.caveats import remarks
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.tables.cost_notes import place_notes, places_of
from zo_sweeps.tables.records import Measure, Record, Rule, check_over, described

if TYPE_CHECKING:
    from zo_sweeps.tables.figure_kind import FigureKind

COLUMN = "column"
TOLD_APART = 8  # colours per panel: more are split into panels
PUBLISHED_KEYS = ("series", "panel", "x", "y")

Lookup = Callable[[Record, str], Any]
Behind = dict[str, list[Record]]  # label of a series -> the records whose values are in it


@dataclass(frozen=True)
class FigureSpec:
    """The layout of one figure.

    Args:
        x: COLUMN or a key of a trial, or what the kind takes.
        x_label, y_label: of the axes; "": the key's last word, the measure's name and unit.
        y: what is drawn, if not `measure`.
        measures: column key -> its measure, if not `measure`.
        curves: (y, label) of several series in place of `y`.
        at: fractions of the training that are shown.
        panels: COLUMN, a key of a trial, or "" for one panel.
        series, columns: (key, label) in order.
        over: of a measure that is a ratio: series -> the block whose value is divided by the series' own.
        published: points {series, panel, x, y} in printed units; `series` is a block, `panel` is optional.
    """

    name: str
    title: str
    kind: FigureKind
    x: str
    y: str
    panels: str
    series: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    measure: Measure | None = None
    curves: tuple[tuple[str, str], ...] = ()
    at: tuple[float, ...] = (1.0,)
    rule: Rule = field(default_factory=Rule)
    published: tuple[Mapping[str, Any], ...] = ()
    footnotes: tuple[str, ...] = ()
    measures: Mapping[str, Measure] = field(default_factory=dict)
    over: Mapping[str, str] = field(default_factory=dict)
    x_label: str = ""
    y_label: str = ""

    def __post_init__(self) -> None:
        where = f"figure {self.name!r}"
        check_over(self.measure, self.over, list(dict(self.series)), where=where)
        self.kind.check(self, where)
        if len(self.columns) > 1 and COLUMN not in (self.x, self.panels):
            fix = "use panels: column or x: column"
            raise UserError("the columns of the grid would be mixed", where=where, fix=fix)
        for point in self.published:
            for key in point:
                if key not in PUBLISHED_KEYS:
                    raise unknown("key of a published point", key, PUBLISHED_KEYS, where=where)
            for key in ("series", "x", "y"):
                if key not in point:
                    raise UserError(f"a published point without {key!r}", where=where)
            if point["series"] not in dict(self.series):
                raise unknown("series", point["series"], dict(self.series), where=where)

    @property
    def ys(self) -> tuple[tuple[str, str], ...]:
        """(y, label) of every curve of a series."""
        return self.curves or ((self.y, ""),)


@dataclass(frozen=True)
class Series:
    """One line, or the bars of one colour. x is a number, or an index into `Figure.ticks` if it has any.

    Args:
        std: sample standard deviation over seeds, None for a single seed.
        color: index of its block, shared by our series and the published one.
        style: index of its line style among series of one colour.
    """

    label: str
    color: int
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    std: tuple[float | None, ...] = ()
    n: int = 0
    is_published: bool = False
    style: int = 0


@dataclass(frozen=True)
class Panel:
    title: str
    series: tuple[Series, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure's contents, ready to draw.

    Args:
        ticks: the categories of the x axis, of kind `rows` those of the y axis; () for numbers.
        same_scale: whether all panels have the same y axis, as those of one panel that was split do.
    """

    name: str
    title: str
    kind: FigureKind
    x_label: str
    y_label: str
    panels: tuple[Panel, ...]
    ticks: tuple[str, ...] = ()
    log_x: bool = False
    notes: tuple[str, ...] = field(default=())
    same_scale: bool = False


def split(panels: Sequence[Panel]) -> tuple[tuple[Panel, ...], bool]:
    """Return panels of at most TOLD_APART colours, and whether one was split; a published series follows its row."""
    parts: list[Panel] = []
    for panel in panels:
        colors = list(dict.fromkeys(series.color for series in panel.series))
        count = math.ceil(len(colors) / TOLD_APART) or 1
        size = math.ceil(len(colors) / count)
        for i in range(count):
            mine = colors[i * size : (i + 1) * size]
            title = panel.title if count == 1 else f"{panel.title} ({i + 1} of {count})".strip()
            parts.append(Panel(title, tuple(series for series in panel.series if series.color in mine)))
    return tuple(parts), len(parts) > len(panels)


def both_labels(spec: FigureSpec, block: str, part: str) -> str:
    """Return a series' label: its block's, if there are several blocks, and its part's, if it has one."""
    return ", ".join(text for text in (block if len(spec.series) > 1 or not part else "", part) if text)


def measured(measure: Measure, spec: FigureSpec) -> str:
    return axis_label(measure, described(measure, spec.measures, spec.columns, measure.name), spec.y)


def axis_label(measure: Measure, unit: str, layout: str) -> str:
    """Return the words and the unit of an axis: "Test accuracy (%)".

    Args:
        unit: the text in brackets.
        layout: the layout's name, or the metric itself: it names a measure that has no name of its own.
    """
    split = measure.metric.partition("/")[0]
    name = measure.name or layout.rpartition("/")[2].replace("_", " ")
    if split in ("dev", "test") and split not in name.split():
        name = f"{split} {name}"
    name = name[:1].upper() + name[1:]
    return f"{name} ({unit})" if unit else name


def order_of(spec: FigureSpec) -> dict[str, int]:
    return {block: i for i, (block, _) in enumerate(spec.series)}


def value_of(record: Record, key: str, lookup: Lookup) -> Any:
    return record.column if key == COLUMN else lookup(record, key)


def values_of(key: str, records: list[Record], spec: FigureSpec, lookup: Lookup, further: Iterable[Any]) -> list[Any]:
    """Return the distinct values of a key: columns in the grid's order, numbers ascending, others in trial order."""
    if key == COLUMN:
        return [name for name, _ in spec.columns]
    ours = [value_of(record, key, lookup) for record in sorted(records, key=lambda record: record.order)]
    values = [value for value in dict.fromkeys([*ours, *further]) if value is not None]
    if records and not values:
        raise UserError(f"no trial has a {key!r}", where=f"figure {spec.name!r}", fix="name an axis, e.g. estimator.q")
    return sorted(values) if all(map(is_number, values)) else values


def panels_of(spec: FigureSpec, records: list[Record], lookup: Lookup) -> list[tuple[Any, str]]:
    if not spec.panels:
        return [(None, "")]
    if spec.panels == COLUMN:
        return list(spec.columns)
    name = spec.panels.rpartition(".")[2]
    return [(value, f"{name} = {value}") for value in values_of(spec.panels, records, spec, lookup, ())]


def published_series(
    spec: FigureSpec, panel: Any, place: Mapping[Any, float] | None, order: Mapping[str, int]
) -> tuple[Series, ...]:
    series = []
    for block, label in spec.series:
        mine = [p for p in spec.published if p["series"] == block and p.get("panel", panel) == panel]
        if mine:
            x = tuple(float(p["x"]) if place is None else place[p["x"]] for p in mine)
            y = tuple(float(p["y"]) for p in mine)
            series.append(Series(f"{label}, published", order[block], x, y, (None,) * len(x), 0, True))
    return tuple(series)


def notes_of(
    spec: FigureSpec,
    panels: Sequence[Panel],
    empty: Sequence[str],
    spread: str,
    behind: Behind,
    measure: Measure | None = None,
) -> tuple[str, ...]:
    """Return the lines below a figure.

    Args:
        empty: series and panels without a finished run.
        spread: what shows the standard deviation.
        measure: of what is drawn, if it is not over training.
    """
    sizes = {series.n for panel in panels for series in panel.series if series.n > 1}
    lines = []
    if sizes:
        lines.append(
            f"Mean over {' or '.join(map(str, sorted(sizes)))} seeds; {spread}: ± one sample standard deviation."
        )
    if empty:
        lines.append(f"No finished run yet: {', '.join(empty)}.")
    named = defaultdict(list)
    for label, records in behind.items():
        metrics = (record.metrics for record in records)
        for line in remarks(
            metrics, measure.metric if measure else "", of_cost=bool(measure and not measure.of_scores)
        ):
            named[line].append(label)
    cost = measure or Measure(spec.kind.cost(spec), "")
    for line, labels in place_notes({label: places_of(records, cost) for label, records in behind.items()}).items():
        named[line] += labels
    lines += [f"{', '.join(labels)}: {line}." for line, labels in named.items()]
    return (*lines, *spec.footnotes)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
