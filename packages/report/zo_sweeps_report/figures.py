"""What a figure is made of: its kind, its layout, its panels and series, and the notes below. `draw` draws it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, ClassVar

from zo_sweeps.core.caveats import remarks
from zo_sweeps.core.errors import UserError, require_known
from zo_sweeps.core.events import SquaredGradients
from zo_sweeps.core.place import apart
from zo_sweeps.methods.definition import Definition
from zo_sweeps.methods.registry import members
from zo_sweeps.tables.cells import place_notes, places_of
from zo_sweeps.tables.records import Measure, Record, Rule, check_over, described
from zo_sweeps.tables.select import is_number, select, settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMN = "column"
TOLD_APART = 8  # colours per panel: more are split into panels
LEGEND = 3  # columns of the legend
PUBLISHED_KEYS = ("series", "panel", "x", "y")

Lookup = Callable[[Record, str], Any]
Behind = dict[str, list[Record]]  # label of a series -> the records whose values are in it
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
    of_grid: ClassVar[bool] = True  # a grid can ask for it; other kinds are made of a table's rows, or of a search
    x_is_measured: ClassVar[bool] = False  # x is a measure, as y is, and not a trial's key

    def check(self, spec: FigureSpec, where: str) -> None:
        """Raise UserError if the layout has a value that this kind cannot draw."""

    def cost(self, spec: FigureSpec) -> str:
        """Return the metric whose cost the x axis shows; "" for none."""
        return ""

    def build(self, spec: FigureSpec, records: Iterable[Record], lookup: Lookup, runs: Runs) -> Figure:
        """Return the figure's contents; `lookup` returns a trial's value of a key ("estimator.q"), or None."""
        raise NotImplementedError

    def size(self, figure: Figure, across: int, down: int) -> tuple[float, float]:
        """Return width and height in inches of a figure with its panels in so many columns and rows."""
        wide = 1.0 + len(figure.ticks) / 8 if figure.ticks and across == 1 else 1.0
        labels = {series.label for panel in figure.panels for series in panel.series}
        legend = 0.21 * math.ceil(len(labels) / LEGEND) if len(labels) > 1 else 0.0
        return max(4.8, 3.4 * across) * min(wide, 2.2), (2.9 + 0.4 * bool(turn(figure))) * down + legend

    def draw(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        """Draw a panel's series into matplotlib's axes; title and labels are there."""
        raise NotImplementedError

    def ticks(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        """Set the ticks of the x axis."""
        if figure.ticks:
            angle = turn(figure)
            axes.set_xticks(range(len(figure.ticks)), figure.ticks, rotation=angle, ha="right" if angle else "center")


def kind_of_grid(name: str, where: str) -> FigureKind:
    """Return the kind that a grid's figure names. Raises UserError for any other."""
    kinds = members("figure_kind").items()
    offered = {one: kind for one, kind in kinds if issubclass(kind, FigureKind) and kind.of_grid}
    require_known("kind of figure", [name], offered, where=where)
    return offered[name]()


@dataclass(frozen=True)
class FigureSpec:
    """The layout of one figure.

    Args:
        x: COLUMN or a key of a trial, or what the kind takes.
        x_label, y_label: of the axes; "": the key's last word, the measure's name and unit.
        y: what is drawn, if not `measure`.
        x_measure: along x, of a kind whose x is measured.
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
    x_measure: Measure | None = None
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
        numeric = ("x", "y") if self.kind.over_training or self.kind.x_is_measured else ("y",)
        for point in self.published:
            if not isinstance(point, Mapping):
                fix = "write {series: BLOCK, x: VALUE, y: NUMBER}"
                raise UserError(f"a published point is a mapping, not {point!r}", where=where, fix=fix)
            require_known("key of a published point", point, PUBLISHED_KEYS, where=where)
            for key in ("series", "x", "y"):
                if key not in point:
                    raise UserError(f"a published point without {key!r}", where=where)
            for key, value in point.items():
                if not (is_number(value) if key in numeric else isinstance(value, str | int | float)):
                    kind = "number" if key in numeric else "text or number"
                    raise UserError(f"{key} of a published point is {value!r}, which is no {kind}", where=where)
            require_known("series", [point["series"]], dict(self.series), where=where)

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
        mark: what it is, of a kind whose series are not all lines or bars.
    """

    label: str
    color: int
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    std: tuple[float | None, ...] = ()
    n: int = 0
    is_published: bool = False
    style: int = 0
    mark: str = ""


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


def turn(figure: Figure) -> int:
    """Return the angle of the ticks' texts: 0 if they fit side by side."""
    return 30 if figure.ticks and max(map(len, figure.ticks)) > 6 and len(figure.ticks) > 3 else 0


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

    `layout` is its name, or the metric itself: it names a measure that has no name of its own.
    """
    split = measure.metric.partition("/")[0]
    name = measure.name or layout.rpartition("/")[2].replace("_", " ")
    if split in ("dev", "test") and split not in name.split():
        name = f"{split} {name}"
    name = name[:1].upper() + name[1:]
    return f"{name} ({unit})" if unit else name


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


def panels_of(
    spec: FigureSpec,
    records: list[Record],
    lookup: Lookup,
    drawn: Callable[[list[Record], str, str], Sequence[Series] | None],
    place: Mapping[Any, float] | None = None,
) -> tuple[list[Panel], list[list[str]]]:
    """Return the panels, with the published series, and of each the names of the series without a finished run.

    Args:
        drawn: (records of the panel, block, label) -> what is drawn of the block; None without a finished run.
        place: x of a published point -> where it is drawn, if not there.
    """
    if spec.panels in ("", COLUMN):
        keys: list[tuple[Any, str]] = [*spec.columns] if spec.panels else [(None, "")]
    else:
        name = spec.panels.rpartition(".")[2]
        keys = [(key, f"{name} = {key}") for key in values_of(spec.panels, records, spec, lookup, ())]
    panels, empty = [], list[list[str]]()
    for key, title in keys:
        here = [record for record in records if not spec.panels or value_of(record, spec.panels, lookup) == key]
        of_blocks = {(block, label): drawn(here, block, label) for block, label in spec.series}
        ours = [series for of_block in of_blocks.values() for series in of_block or ()]
        theirs = []
        for color, (block, label) in enumerate(spec.series):
            if mine := [p for p in spec.published if p["series"] == block and p.get("panel", key) == key]:
                x = tuple(float(p["x"]) if place is None else place[p["x"]] for p in mine)
                y = tuple(float(p["y"]) for p in mine)
                theirs.append(Series(f"{label}, published", color, x, y, (None,) * len(x), 0, True))
        bare = [label for (_, label), of_block in of_blocks.items() if of_block is None]
        empty.append([f"{label} ({title})" if title else label for label in bare])
        panels.append(Panel(title, (*ours, *theirs)))
    return panels, empty


def notes_of(
    spec: FigureSpec,
    panels: Sequence[Panel],
    empty: Sequence[Sequence[str]],
    spread: str,
    behind: Behind,
    measure: Measure | None = None,
) -> tuple[str, ...]:
    """Return the lines below a figure.

    Args:
        empty: of each panel the series without a finished run; of one without any, its title is named.
        spread: what shows the standard deviation.
        measure: of what is drawn, if it is not over training.
    """
    lines = []
    if sizes := sorted({series.n for panel in panels for series in panel.series if series.n > 1}):
        lines.append(f"Mean over {' or '.join(map(str, sizes))} seeds; {spread}: ± one sample standard deviation.")
    bare = [panel.title if all(one.is_published for one in panel.series) else "" for panel in panels]
    if names := [
        name for title, of_panel in zip(bare, empty, strict=True) for name in ([title] if title else of_panel)
    ]:
        lines.append(f"No finished run yet: {', '.join(names)}.")
    cost = measure or Measure(spec.kind.cost(spec), "")
    named = defaultdict(list)
    for label, records in behind.items():
        metrics = [record.metrics for record in records]
        for line in remarks(
            metrics, measure.metric if measure else "", of_cost=bool(measure and not measure.of_scores)
        ):
            named[line].append(label)
    for line, labels in place_notes({label: places_of(records, cost) for label, records in behind.items()}).items():
        named[line] += labels
    lines += [f"{', '.join(labels)}: {line}." for line, labels in named.items()]
    return (*lines, *spec.footnotes)


def points(spec: FigureSpec, records: Iterable[Record], lookup: Lookup, spread: str, by_number: bool = False) -> Figure:
    """Build a line or bar figure: at every x the setting with that x that is best on dev, mean ± std over seeds.

    Args:
        spread: what shows the standard deviation, in words.
        by_number: whether x is a number where it can be, and not a category.
    """
    assert spec.measure is not None
    measure, labels, blocks = spec.measure, dict(spec.columns), {*dict(spec.series), *spec.over.values()}
    order = [block for block, _ in spec.series]
    mine = [record for record in records if record.block in blocks]
    xs = values_of(spec.x, mine, spec, lookup, [point["x"] for point in spec.published])
    numeric = by_number and spec.x != COLUMN and all(map(is_number, xs))
    place = {x: float(x) if numeric else float(i) for i, x in enumerate(xs)}
    behind: Behind = defaultdict(list)
    refused: dict[str, list[str]] = defaultdict(list)

    def drawn(here: list[Record], block: str, label: str) -> list[Series] | None:
        shown = _selected(spec, [record for record in here if record.block == block], lookup, place)
        behind[label] += [record for of_point in shown.values() for record in of_point[0]]
        at = {x: (fmean(values), stdev(values) if len(values) > 1 else None) for x, (_, values) in shown.items()}
        if block in spec.over:
            above = _selected(spec, [record for record in here if record.block == spec.over[block]], lookup, place)
            behind[label] += [record for of_point in above.values() for record in of_point[0]]
            ratios: dict[float, tuple[float, float | None]] = {}
            for x, (own, _) in shown.items():
                over, values = above.get(x, ((), []))
                if why := apart(places_of((*own, *over), measure)):
                    refused[why].append(label)
                elif values and at[x][0] > 0:
                    ratios[x] = fmean(values) / at[x][0], None
            at = ratios
        if not at:
            return [] if any(label in of_line for of_line in refused.values()) else None
        y, std = zip(*at.values(), strict=True)
        n = 0 if block in spec.over else max(len(values) for _, values in shown.values())
        return [Series(label, order.index(block), tuple(at), y, std, n)]

    panels, empty = panels_of(spec, mine, lookup, drawn, place)
    positive = [x for x in place.values() if x > 0]
    shown_panels, same_scale = split(panels)
    return Figure(
        spec.name,
        spec.title,
        spec.kind,
        spec.x_label or ("" if spec.x == COLUMN else spec.x.rpartition(".")[2]),
        spec.y_label or measured(measure, spec),
        shown_panels,
        () if numeric else tuple(labels.get(x, str(x)) if spec.x == COLUMN else str(x) for x in xs),
        numeric and len(positive) == len(xs) > 2 and max(positive) >= 8 * min(positive),
        (
            *(f"{', '.join(dict.fromkeys(labels))}: no ratio, {why}." for why, labels in refused.items()),
            *notes_of(spec, panels, empty, spread, behind, measure),
        ),
        same_scale,
    )


def _selected(
    spec: FigureSpec, records: list[Record], lookup: Lookup, place: Mapping[Any, float]
) -> Mapping[float, tuple[Sequence[Record], list[float]]]:
    """Return x -> the records of the setting that is selected there, and their values, where all are finite."""
    assert spec.measure is not None
    shown = {}
    for value, at in place.items():
        best = select(settings([r for r in records if value_of(r, spec.x, lookup) == value]), spec.rule)
        chosen = best.records if best else ()
        values = [spec.measures.get(r.column, spec.measure).value(r.metrics) for r in chosen]
        if values and all(map(math.isfinite, values)):
            shown[at] = chosen, values
    return shown
