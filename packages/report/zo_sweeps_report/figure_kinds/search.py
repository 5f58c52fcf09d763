"""Search: what selects a setting against a value that was searched, with every run, those without a value included."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.core.trial import TrialState
from zo_sweeps.tables.records import Measure, Record, Rule, described
from zo_sweeps.tables.select import is_number, select, settings
from zo_sweeps_report.draw import look
from zo_sweeps_report.figures import Figure, FigureKind, Panel, Series, axis_label, split

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE, RUNS, BEYOND, SELECTED, FAILED = "", "runs", "beyond", "selected", "failed"  # marks of series
BAD = {s.value for s in (TrialState.DIVERGED, TrialState.OUT_OF_MEMORY, TrialState.FAILED, TrialState.LOST)}
RATE = "update.lr"
LEAST = 3  # values of a row from which on its axis has a figure; of the learning rate 2
_Points = dict[float, list[float]]  # x -> values
FAR = 4  # times as far from the best run as the median one: the runs beyond are drawn at the edge
TICKS = 6  # values up to which each has a label


@dataclass(frozen=True)
class Search(FigureKind):
    """The metric that selects along a searched value, a line per row: made by `search_figure`."""

    of_grid: ClassVar[bool] = False

    def draw(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        colors = list(dict.fromkeys(series.color for series in panel.series))
        panels = figure.panels if figure.same_scale else (panel,)
        within = [y for one in panels for series in one.series if series.mark == RUNS for y in series.y] or [0.0]
        low, high = min(within), max(within)
        pad = 0.06 * (high - low or abs(high) or 1.0)
        axes.set_ylim(low - pad, high + pad * (1 + any(s.mark == FAILED for one in panels for s in one.series)))
        for series in panel.series:
            (color, style, marker), x, y = look(series), series.x, series.y
            if series.mark == LINE:
                axes.plot(x, y, style, marker=marker, markersize=4, color=color, label=series.label)
            elif series.mark == RUNS:
                axes.plot(x, y, ".", color=color, markersize=5, alpha=0.6)
            elif series.mark == SELECTED:
                axes.plot(x, y, "o", color=color, mfc="none", markersize=11, markeredgewidth=1.6, zorder=4)
            elif series.mark == BEYOND:
                for form, edge in (("^", 1.0), ("v", 0.0)):
                    if there := [a for a, b in zip(x, y, strict=True) if (b > high) == bool(edge)]:
                        level, at_edge = [edge] * len(there), axes.get_xaxis_transform()
                        axes.plot(there, level, form, color=color, transform=at_edge, clip_on=False)
            else:  # below each other, row by row
                level = [0.98 - 0.05 * colors.index(series.color)] * len(x)
                axes.plot(x, level, "x", color=color, transform=axes.get_xaxis_transform(), zorder=4)

    def ticks(self, axes: Axes, figure: Figure, panel: Panel) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator

        at = sorted({x for series in panel.series for x in series.x})
        if figure.log_x:
            axes.set_xscale("log")
            wide = at and at[-1] > 100 * at[0]
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 3.0), numticks=TICKS))
        if len(at) <= TICKS:
            axes.set_xticks(at)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.minorticks_off()


def searched(records: Iterable[Record]) -> dict[str, list[str]]:
    """Return axis -> the rows that tried LEAST numbers of it in a column, or two learning rates, which come first."""
    values: dict[tuple[str, str, str], set[float]] = {}
    for record in records:
        for key, value in record.hyperparameters.items():
            if is_number(value):
                values.setdefault((key, record.block, record.column), set()).add(value)
    rows: dict[str, list[str]] = {}
    for (key, block, _), tried in sorted(values.items(), key=lambda one: one[0][0] != RATE):
        if len(tried) >= (2 if key == RATE else LEAST) and block not in rows.setdefault(key, []):
            rows[key].append(block)
    return {key: blocks for key, blocks in rows.items() if blocks}


@dataclass(frozen=True)
class Compared:
    """What the figures of searches show.

    Args:
        records: of the rows that search.
        columns: (key, label) in order.
        seeds: those at which settings are compared.
        measures: column -> the measure of the metric that selects.
    """

    records: Sequence[Record]
    columns: Sequence[tuple[str, str]]
    rule: Rule
    seeds: Collection[int]
    measures: Mapping[str, Measure]

    @property
    def metric(self) -> str:
        """The label of an axis of the metric that selects."""
        first = next(iter(self.measures.values()))
        return axis_label(first, described(first, self.measures, self.columns, first.name), self.rule.metric)

    def panels(self, of: Callable[[str], Sequence[Series]]) -> list[Panel]:
        """Return a panel per column that has series; of: column -> them."""
        drawn = [(title if len(self.columns) > 1 else "", of(column)) for column, title in self.columns]
        return [Panel(title, tuple(series)) for title, series in drawn if series]


def search_figure(name: str, key: str, rows: Sequence[tuple[str, str]], compared: Compared) -> Figure | None:
    """Return the figure of the searched axis `key`, of kind "search": a panel per column; None without any run.

    A row's line is at each value the best setting with it: its mean over the seeds at which settings are compared.
    rows: (key, label) in order.
    """
    failed, rule, seeds = dict[str, list[str]](), compared.rule, compared.seeds
    mine = [record for record in compared.records if is_number(record.hyperparameters.get(key))]

    def drawn(column: str) -> Sequence[Series]:
        series = list[Series]()
        for color, (block, label) in enumerate(rows):
            here = [record for record in mine if (record.block, record.column) == (block, column)]
            found, bad = _row(label, color, key, here, compared, column)
            series += found
            failed.setdefault(label, []).extend(bad)
        return _near(series, rule)

    if not (panels := compared.panels(drawn)):
        return None
    every = [series for panel in panels for series in panel.series]
    y, x = compared.metric, "Learning rate (update.lr)" if key == RATE else key
    labels = list(dict.fromkeys(series.label for series in every))
    of_rows = f" of {labels[0]}" if len(labels) == 1 else ""
    title = f"{y.partition(' (')[0]}{of_rows} by {'learning rate' if key == RATE else key}"
    wrong = [f"{label} ({', '.join(lines)})" for label, lines in failed.items() if lines]
    seeded = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}, where settings are compared"
    over = seeded if {record.seed for record in mine} - {*seeds} else "seeds"
    notes = [f"Line: the best setting at each value, mean over {over}; points: each run; ring: the selected setting"]
    notes += [f"×: no value. {'; '.join(wrong)}"] if wrong else []
    notes += ["▲ ▼: beyond the axis"] if any(series.mark == BEYOND for series in every) else []
    shown, same_scale = split(panels)
    log = all(value > 0 for series in every for value in series.x)
    return Figure(name, title, Search(), x, y, shown, (), log, tuple(notes), same_scale)


def _row(
    label: str, color: int, key: str, records: Sequence[Record], compared: Compared, column: str
) -> tuple[list[Series], list[str]]:
    """Return the series of a row in a column, and how many of its runs have no value where, in words."""
    rule, measure = compared.rule, compared.measures[column]
    tried = settings(record for record in records if record.seed in compared.seeds)
    means = {i: setting.mean(rule.metric) for i, setting in enumerate(tried) if setting.has_succeeded}
    sign = 1 if rule.mode == "min" else -1
    line: _Points = {}
    for _, i in sorted((sign * mean, i) for i, mean in means.items() if mean is not None):
        values = [measure.value(record.metrics) for record in tried[i].records]
        line.setdefault(float(tried[i].hyperparameters[key]), values)
    ran = [record for record in records if record.state == TrialState.SUCCEEDED.value]
    runs = sorted((float(r.hyperparameters[key]), measure.value(r.metrics)) for r in ran)
    chosen = select(settings(records), rule)
    best = [] if chosen is None else [float(chosen.hyperparameters[key])]
    bad = Counter((float(record.hyperparameters[key]), record.state) for record in records if record.state in BAD)
    found = [
        _series(label, color, LINE, sorted(line.items())),
        _series(label, color, RUNS, [(x, [value]) for x, value in runs if math.isfinite(value)]),
        _series(label, color, SELECTED, [(x, line[x]) for x in best if x in line]),
        _series(label, color, FAILED, [(x, [math.nan]) for x in sorted({x for x, _ in bad})]),
    ]
    words = [f"{x:g}: {n} {state.lower().replace('_', ' ')}" for (x, state), n in sorted(bad.items())]
    return [series for series in found if series.x], words


def _series(label: str, color: int, mark: str, points: Sequence[tuple[float, Sequence[float]]]) -> Series:
    """Return a series of means; points: (x, values)."""
    every = [values for _, values in points]
    std = tuple(stdev(values) if len(values) > 1 else None for values in every)
    n = max(map(len, every), default=0)
    return Series(label, color, tuple(x for x, _ in points), tuple(map(fmean, every)), std, n, mark=mark)


def _near(series: Sequence[Series], rule: Rule) -> tuple[Series, ...]:
    """Return the series of a panel with the runs that are too far from the best to be drawn to scale apart."""
    sign = 1 if rule.mode == "min" else -1
    values = sorted(sign * y for one in series if one.mark == RUNS for y in one.y)
    end = values[0] + FAR * (median(values) - values[0]) if values else math.inf
    end = end if values and end > values[0] else math.inf
    parts = list[Series]()
    for one in series:
        points = [(x, [y]) for x, y in zip(one.x, one.y, strict=True)]
        if one.mark == RUNS:
            within, beyond = ([p for p in points if (sign * p[1][0] > end) == far] for far in (False, True))
            parts += [_series(one.label, one.color, *of) for of in ((RUNS, within), (BEYOND, beyond)) if of[1]]
        else:
            parts.append(one)
    return tuple(parts)
