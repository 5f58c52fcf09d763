"""Figures whose points are finished settings. Not a member of the axis."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from statistics import fmean, stdev
from typing import Any

from zo_sweeps.core.place import apart
from zo_sweeps.tables.cost_notes import places_of
from zo_sweeps.tables.figures import (
    COLUMN,
    Behind,
    Figure,
    FigureSpec,
    Lookup,
    Panel,
    Series,
    is_number,
    measured,
    notes_of,
    order_of,
    panels_of,
    published_series,
    split,
    value_of,
    values_of,
)
from zo_sweeps.tables.records import Record
from zo_sweeps.tables.select import select, settings


def points(spec: FigureSpec, records: Iterable[Record], lookup: Lookup, spread: str, by_number: bool = False) -> Figure:
    """Build a line or bar figure: at every x the setting with that x that is best on dev, mean ± std over seeds.

    Args:
        spread: what shows the standard deviation, in words.
        by_number: whether x is a number where it can be, and not a category.
    """
    assert spec.measure is not None
    order, blocks = order_of(spec), {*dict(spec.series), *spec.over.values()}
    mine = [record for record in records if record.block in blocks]
    xs = values_of(spec.x, mine, spec, lookup, [point["x"] for point in spec.published])
    numeric = by_number and spec.x != COLUMN and all(is_number(x) for x in xs)
    place = {x: float(x) if numeric else float(i) for i, x in enumerate(xs)}
    panels, empty = [], []
    behind: Behind = defaultdict(list)
    refused: dict[str, list[str]] = defaultdict(list)
    for key, title in panels_of(spec, mine, lookup):
        here = [record for record in mine if not spec.panels or value_of(record, spec.panels, lookup) == key]
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
        panels.append(Panel(title, (*drawn, *published_series(spec, key, place, order))))
    measure, labels = spec.measure, dict(spec.columns)
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


def _points(
    spec: FigureSpec, records: list[Record], lookup: Lookup, place: Mapping[Any, float]
) -> tuple[Series, dict[float, tuple[Record, ...]]]:
    """Return the series of these records, and those whose mean each of its points is, by x."""
    assert spec.measure is not None
    x, y, std, n = [], [], [], 0
    shown: dict[float, tuple[Record, ...]] = {}
    for value, at in place.items():
        selected = select(settings([r for r in records if value_of(r, spec.x, lookup) == value]), spec.rule)
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
