"""records x layout x published points -> the panels, series and points of a figure. Plain data; `draw` draws it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.place import apart
from zo_sweeps.core.remarks import remarks
from zo_sweeps.tables.placed import place_notes, places_of
from zo_sweeps.tables.records import Measure, Record, Rule, check_over, described
from zo_sweeps.tables.select import select, settings

KINDS = ("line", "bar", "curve", "cumulative")
COLUMN = "column"
CURVES: Mapping[str, tuple[str, float]] = {  # y of a curve -> its label, and one printed unit in recorded units
    "dev/loss": ("Dev loss (nats)", 1.0),
    "dev/metric": ("Dev metric (%)", 0.01),  # if the layout has no measure of it
    "train/loss": ("Training loss (nats)", 1.0),
}
GRADIENTS = "gradients/"  # prefix of a curve <mask>/<density>: the mask's share of the squared gradient
CURVE_X = {"step": "Training steps", "seconds": "Time in training steps (s), without evaluation"}
CURVE_COST = {"seconds": "train_seconds"}  # x of a curve -> the metric that it shows of a run's cost
WINDOWS = 40  # points per curve of training losses: each is the mean over a window of steps
TOLD_APART = 8  # colours per panel: more are split into panels
PUBLISHED_KEYS = ("series", "panel", "x", "y")

Cumulative = Mapping[int, Mapping[str, Sequence[float]]]  # of one run: step -> shares, mean, std over the layers
Trail = Mapping[str, Sequence[tuple[int, float, float]]]  # of one run: name in CURVES -> (step, seconds, value)
Lookup = Callable[[Record, str], Any]
Behind = dict[str, list[Record]]  # label of a series -> the records whose values are in it


@dataclass(frozen=True)
class FigureSpec:
    """The layout of one figure.

    Args:
        kind: "line" or "bar" (a point is a finished setting), "curve" (a line is a run over time), "cumulative" (the
            cumulative squared gradient of a run, by share of the parameters).
        x: COLUMN or a key of a trial; for kind "curve", "step" or "seconds".
        x_label, y_label: of the axes, of kinds "line" and "bar"; "": the key's last word, the measure's name and unit.
        y: a name in CURVES, for kind "curve". Other kinds show `measure`.
        measures: column key -> its measure, if not `measure` (also for curves of dev/metric).
        curves: (y, label) of several curves, GRADIENTS included; replaces `y`.
        at: for kind "cumulative", fractions of the training: each shows the first measurement from there on.
        panels: COLUMN, a key of a trial, or "" for one panel.
        series, columns: (key, label) in order.
        over: of a measure that is a ratio: series -> the block whose value is divided by the series' own.
        published: points {series, panel, x, y} in printed units; `series` is a block, `panel` is optional.
    """

    name: str
    title: str
    kind: str
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
        if self.kind not in KINDS:
            raise unknown("kind of figure", self.kind, KINDS, where=where)
        if self.kind == "curve":
            if self.x not in CURVE_X:
                raise unknown("x of a curve", self.x, CURVE_X, where=where)
            for y, _ in self.ys:
                if y not in CURVES and not y.startswith(GRADIENTS):
                    raise unknown("y of a curve", y, [*CURVES, f"{GRADIENTS}MASK/DENSITY"], where=where)
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
        kind: one of KINDS, or "rows": a table's rows below each other, its values along x (see `row_figure`).
        ticks: the categories of the x axis, of kind "rows" those of the y axis; () for numbers.
        same_scale: whether all panels have the same y axis, as those of one panel that was split do.
    """

    name: str
    title: str
    kind: str
    x_label: str
    y_label: str
    panels: tuple[Panel, ...]
    ticks: tuple[str, ...] = ()
    log_x: bool = False
    notes: tuple[str, ...] = field(default=())
    same_scale: bool = False


def points(spec: FigureSpec, records: Iterable[Record], lookup: Lookup) -> Figure:
    """Build a line or bar figure: at every x the setting with that x that is best on dev, mean ± std over seeds.

    Args:
        lookup: (record, key) -> the trial's value of a key such as "estimator.q", None if it has none.
    """
    assert spec.measure is not None
    order, blocks = _named(spec), {*dict(spec.series), *spec.over.values()}
    mine = [record for record in records if record.block in blocks]
    xs = _values(spec.x, mine, spec, lookup, [point["x"] for point in spec.published])
    numeric = spec.kind == "line" and spec.x != COLUMN and all(_is_number(x) for x in xs)
    place = {x: float(x) if numeric else float(i) for i, x in enumerate(xs)}
    panels, empty = [], []
    behind: Behind = defaultdict(list)
    refused: dict[str, list[str]] = defaultdict(list)
    for key, title in _panels(spec, mine, lookup):
        here = [record for record in mine if not spec.panels or _value(record, spec.panels, lookup) == key]
        drawn = []
        for block, label in spec.series:
            series, shown = _points(spec, [record for record in here if record.block == block], lookup, place)
            behind[label] += [record for records in shown.values() for record in records]
            if block in spec.over:
                of_other = [record for record in here if record.block == spec.over[block]]
                above, others = _points(spec, of_other, lookup, place)
                behind[label] += [record for records in others.values() for record in records]
                why = {x: apart(places_of((*shown[x], *others.get(x, ())), spec.measure)) for x in shown}
                series = _divided(above, series, {x for x in shown if not why[x]})
                for line in filter(None, why.values()):
                    refused[line].append(label)
            if series.x:
                drawn.append(Series(label, order[block], series.x, series.y, series.std, series.n))
            elif not any(label in labels for labels in refused.values()):
                empty.append(f"{label} ({title})" if title else label)
        if title and not drawn:
            empty = [*(name for name in empty if not name.endswith(f"({title})")), title]
        panels.append(Panel(title, (*drawn, *_published(spec, key, place, order))))
    measure, labels = spec.measure, dict(spec.columns)
    positive = [x for x in place.values() if x > 0]
    split, same_scale = _split(panels)
    return Figure(
        spec.name,
        spec.title,
        spec.kind,
        spec.x_label or ("" if spec.x == COLUMN else spec.x.rpartition(".")[2]),
        spec.y_label or _measured(measure, spec),
        split,
        () if numeric else tuple(labels.get(x, str(x)) if spec.x == COLUMN else str(x) for x in xs),
        numeric and len(positive) == len(xs) > 2 and max(positive) >= 8 * min(positive),
        (
            *(f"{', '.join(dict.fromkeys(labels))}: no ratio, {why}." for why, labels in refused.items()),
            *_notes(spec, panels, empty, "bars" if spec.kind == "bar" else "error bars", behind, measure),
        ),
        same_scale,
    )


def curves(spec: FigureSpec, records: Iterable[Record], lookup: Lookup, trail: Callable[[str], Trail]) -> Figure:
    """Build a figure of the convergence of every block's selected setting: mean over its seeds, band of one std.

    Against seconds, a point is drawn at the seeds' mean time.

    Args:
        trail: reads a run's curves, by trial id.
    """
    order, mine = _named(spec), [record for record in records if record.block in dict(spec.series)]
    label, unit_size = CURVES.get(spec.ys[0][0], ("Share of the squared gradient", 1.0))
    if spec.measure is not None:
        label, unit_size = _measured(spec.measure, spec), spec.measure.unit_size
    panels, empty, windows = [], [], set()
    behind: Behind = defaultdict(list)
    for key, title in _panels(spec, mine, lookup):
        here = [record for record in mine if not spec.panels or _value(record, spec.panels, lookup) == key]
        drawn = []
        for block, name in spec.series:
            selected = select(settings([record for record in here if record.block == block]), spec.rule)
            behind[name] += selected.records if selected else ()
            trails = [trail(record.trial_id) for record in selected.records] if selected else []
            for curve, of_curve in spec.ys:
                runs = [run.get(curve, ()) for run in trails]
                if curve == "train/loss" and runs and all(runs):
                    window = max(1, math.ceil(min(map(len, runs)) / WINDOWS))
                    windows.add(window)
                    runs = [windowed(run, window) for run in runs]
                own = spec.measures.get(selected.records[0].column) if selected else None
                x, y, std = _mean_run(runs, spec.x == "seconds", own.unit_size if own else unit_size)
                if x:
                    color, style = _place(spec, curve) if of_curve else (order[block], 0)
                    drawn.append(Series(_both(spec, name, of_curve), color, x, y, std, len(runs), style=style))
            if selected is None and any(record.block == block for record in here):
                empty.append(f"{name} ({title})" if title else name)
        if title and not drawn:
            empty = [*(name for name in empty if not name.endswith(f"({title})")), title]
        panels.append(Panel(title, (*drawn, *_published(spec, key, None, order))))
    notes = _notes(spec, panels, empty, "bands", behind)
    if max(windows, default=1) > 1:
        notes = (*notes, f"Training losses are means over windows of {' or '.join(map(str, sorted(windows)))} steps.")
    split, same_scale = _split(panels)
    return Figure(spec.name, spec.title, spec.kind, CURVE_X[spec.x], label, split, notes=notes, same_scale=same_scale)


def cumulative(
    spec: FigureSpec, records: Iterable[Record], lookup: Lookup, read: Callable[[str], Cumulative]
) -> Figure:
    """Build a figure of the cumulative normalized squared gradient of every block's selected setting.

    x is the share of the parameters. Mean over the layers (and seeds), with a band of one standard deviation over the
    layers. A panel without a measurement is empty.

    Args:
        read: reads a run's cumulative gradient, by trial id.
    """
    mine = [record for record in records if record.block in dict(spec.series)]
    panels, empty = [], []
    for key, title in _panels(spec, mine, lookup):
        here = [record for record in mine if not spec.panels or _value(record, spec.panels, lookup) == key]
        drawn: list[Series] = []
        for block, name in spec.series:
            selected = select(settings([record for record in here if record.block == block]), spec.rule)
            runs = [read(record.trial_id) for record in selected.records] if selected else []
            steps = sorted(set.intersection(*map(set, runs))) if runs else []
            wanted = dict.fromkeys(next(s for s in steps if s >= part * steps[-1]) for part in spec.at) if steps else {}
            for step in wanted:
                parts = [run[step] for run in runs]
                mean, std = (tuple(map(fmean, zip(*(p[k] for p in parts), strict=True))) for k in ("mean", "std"))
                label = _both(spec, name, f"step {step}")
                drawn.append(Series(label, len(drawn), tuple(parts[0]["shares"]), mean, std, len(runs)))
            if not steps and any(record.block == block for record in here):
                empty.append(f"{name} ({title})" if title else name)
        panels.append(Panel(title, tuple(drawn)))
    notes = [f"No finished run yet: {', '.join(empty)}."] if empty else []
    notes += ["Mean over the linear layers; bands: ± one standard deviation over them.", *spec.footnotes]
    y, x = "Cumulative share of the squared gradient", "Share of a layer's parameters"
    return Figure(spec.name, spec.title, spec.kind, x, y, tuple(panels), (), True, tuple(notes))


def _split(panels: Sequence[Panel]) -> tuple[tuple[Panel, ...], bool]:
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


def _both(spec: FigureSpec, block: str, part: str) -> str:
    """Return a series' label: its block's, if there are several blocks, and its part's, if it has one."""
    return ", ".join(text for text in (block if len(spec.series) > 1 or not part else "", part) if text)


def _place(spec: FigureSpec, curve: str) -> tuple[int, int]:
    """Return (colour, line style) of one of several curves: one colour per density, one line style per mask."""
    heads, tails = ([name.rpartition("/")[i] for name, _ in spec.curves] for i in (0, 2))
    return list(dict.fromkeys(tails)).index(curve.rpartition("/")[2]), list(dict.fromkeys(heads)).index(
        curve.rpartition("/")[0]
    )


def _measured(measure: Measure, spec: FigureSpec) -> str:
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


def _named(spec: FigureSpec) -> dict[str, int]:
    return {block: i for i, (block, _) in enumerate(spec.series)}


def _value(record: Record, key: str, lookup: Lookup) -> Any:
    return record.column if key == COLUMN else lookup(record, key)


def _values(key: str, records: list[Record], spec: FigureSpec, lookup: Lookup, further: Iterable[Any]) -> list[Any]:
    """Return the distinct values of a key: columns in the grid's order, numbers ascending, others in trial order."""
    if key == COLUMN:
        return [name for name, _ in spec.columns]
    ours = [_value(record, key, lookup) for record in sorted(records, key=lambda record: record.order)]
    values = [value for value in dict.fromkeys([*ours, *further]) if value is not None]
    if records and not values:
        raise UserError(f"no trial has a {key!r}", where=f"figure {spec.name!r}", fix="name an axis, e.g. estimator.q")
    return sorted(values) if all(map(_is_number, values)) else values


def _panels(spec: FigureSpec, records: list[Record], lookup: Lookup) -> list[tuple[Any, str]]:
    if not spec.panels:
        return [(None, "")]
    if spec.panels == COLUMN:
        return list(spec.columns)
    name = spec.panels.rpartition(".")[2]
    return [(value, f"{name} = {value}") for value in _values(spec.panels, records, spec, lookup, ())]


def _points(
    spec: FigureSpec, records: list[Record], lookup: Lookup, place: Mapping[Any, float]
) -> tuple[Series, dict[float, tuple[Record, ...]]]:
    """Return the series of these records, and those whose mean each of its points is, by x."""
    assert spec.measure is not None
    x, y, std, n = [], [], [], 0
    shown: dict[float, tuple[Record, ...]] = {}
    for value, at in place.items():
        selected = select(settings([r for r in records if _value(r, spec.x, lookup) == value]), spec.rule)
        chosen = selected.records if selected else ()
        values = [spec.measures.get(r.column, spec.measure).value(r.metrics) for r in chosen]
        if values and all(map(math.isfinite, values)):
            x.append(at)
            y.append(fmean(values))
            std.append(stdev(values) if len(values) > 1 else None)
            n = max(n, len(values))
            shown[at] = tuple(chosen)
    return Series("", 0, tuple(x), tuple(y), tuple(std), n), shown


def _divided(above: Series, below: Series, alike: Collection[float]) -> Series:
    """Return the ratio of two series where both have a point, at those x whose places are `alike`."""
    tops = dict(zip(above.x, above.y, strict=True))
    ratios = {x: tops[x] / y for x, y in zip(below.x, below.y, strict=True) if x in tops and x in alike and y > 0}
    return Series("", 0, tuple(ratios), tuple(ratios.values()), (None,) * len(ratios))


def _published(
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


def _notes(
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
    cost = measure or Measure(CURVE_COST.get(spec.x, ""), "")
    for line, labels in place_notes({label: places_of(records, cost) for label, records in behind.items()}).items():
        named[line] += labels
    lines += [f"{', '.join(labels)}: {line}." for line, labels in named.items()]
    return (*lines, *spec.footnotes)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
