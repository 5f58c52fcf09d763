"""The figures of a grid, from its plan, the ledger and the journals."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import GridFigure
from zo_sweeps.core.errors import UserError, require_known, unknown
from zo_sweeps.core.events import Event
from zo_sweeps.plan.as_written import altered
from zo_sweeps.plan.build import Plan
from zo_sweeps.plan.grid_file import flatten
from zo_sweeps.record.journal import JournalStore, gradients, trail
from zo_sweeps.results import tables as readout
from zo_sweeps.results.tables import column_measures, metric_names, metrics_of, rule_of
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tables import Measure, Record, Rule
from zo_sweeps.tables.page import readable
from zo_sweeps.tables.published import names
from zo_sweeps_report.figure_kinds.parallel import parallel_figures
from zo_sweeps_report.figure_kinds.rows import row_figure
from zo_sweeps_report.figure_kinds.search import Compared, search_figure, searched
from zo_sweeps_report.figures import COLUMN, Figure, FigureSpec, Lookup, Runs, kind_of_grid, values_of
from zo_sweeps_report.metric_meanings import METRICS

MAIN = "result"  # name of the figure of the first table's rows
# The further figures of a grid that defines none: convergence by step and by time.
DEFAULTS = {
    "dev_loss": GridFigure(kind="curve", title="Dev loss by step", x="step", y="dev/loss"),
    "dev_metric": GridFigure(kind="curve", title="Dev metric by time", x="seconds", y="dev/metric"),
    "train_loss": GridFigure(kind="curve", title="Training loss by step", x="step", y="train/loss"),
}
PERCENT = Measure(metric="dev/metric", unit="%", unit_size=0.01)  # of a dev/metric curve
GAINS = ("tokens_per_second", "fused_gain")  # the metrics besides scores of which more is better


def figures(plan: Plan, composer: Composer, standing: Standing, only: Sequence[str] = ()) -> list[Figure]:
    """Return the grid's figures, in its order; for a grid that defines none its first table's rows, then curves.

    Args:
        only: names of figures, or of those in `searches`; default: all of the grid's.

    Raises UserError for a name that is no figure of the grid, a layout that cannot be drawn, and a damaged journal.
    """
    named = plan.grid.figures or DEFAULTS
    main = next(iter(plan.grid.tables), "") if not plan.grid.figures else ""  # of whose rows the first figure is
    every = [*([MAIN] if main else []), *named]
    search = searches(plan, standing) if {*only} - {*every} else {}
    require_known("figure", only, [*every, *search], where=f"grid {plan.name}")
    records = readout.records(plan, standing)
    journals, made = JournalStore(plan.config.folder), []

    def events(trial_id: str) -> list[Event]:
        return journals.read(trial_id, ended=standing.has_result(trial_id))

    runs = Runs(cache(lambda trial_id: trail(events(trial_id))), cache(lambda trial_id: gradients(events(trial_id))))
    compared = plan.grid.differs or any(layout.published or layout.differs for layout in named.values())
    changed, look = altered(plan, composer) if compared else frozenset[tuple[str, str]](), _lookup(plan)
    for name in only or every:
        if name == MAIN:
            (table,) = readout.tables(plan, composer, standing, [main])
            made.append(row_figure(readable(table), f"{plan.name}_{MAIN}"))
            continue
        if name not in named:
            made.append(search[name])
            continue
        spec = _spec(plan, composer, name, named[name])
        spec = replace(
            spec,
            published=_published(spec, plan, changed, records, look),
            footnotes=(*spec.footnotes, *_differences(plan, named[name], spec, changed)),
        )
        made.append(spec.kind.build(spec, records, look, runs))
    return made


def searches(plan: Plan, standing: Standing) -> dict[str, Figure]:
    """Return name -> the figure of how the result depends on a searched axis, that of rates first."""
    blocks, rule = plan.grid.blocks, Rule(**vars(plan.grid.select))
    records = [record for record in readout.records(plan, standing) if not blocks[record.block].setting_of]
    of_loss = rule.metric.endswith("/loss")
    measure = Measure(rule.metric, "nats", better="lower") if of_loss else replace(PERCENT, metric=rule.metric)
    measure, own = column_measures(plan, "", measure)
    seeds = [*dict.fromkeys(cell.seed for cell in plan.cells)][: plan.grid.select.seeds]
    measures = {column: own.get(column, measure) for column in plan.labels}
    compared, found = Compared(records, [*plan.labels.items()], rule, seeds, measures), {}
    for key, rows in searched(records).items():
        name = f"search_{key.replace('.', '_')}"
        labels = [(block, plan.grid.label(block)) for block in rows]
        if (figure := search_figure(f"{plan.name}_{name}", key, labels, compared)) is not None:
            found[name] = figure
    labels = [(block, plan.grid.label(block)) for block in blocks]
    for figure in parallel_figures(labels, compared):
        name = f"search_{figure.name}"
        found[name] = replace(figure, name=f"{plan.name}_{name}")
    return found


def _differences(
    plan: Plan, layout: GridFigure, spec: FigureSpec, changed: Collection[tuple[str, str]]
) -> Iterator[str]:
    """Yield what differs from the paper in the series of a figure that the grid defines, and where."""
    labels = dict(spec.series) if plan.grid.figures else {}
    for one in (*plan.grid.differs, *layout.differs):
        rows = [block for block in labels if not one.rows or block in one.rows]
        if not {*product(rows, one.columns or plan.labels)} <= {*changed}:
            columns = [plan.labels[column] for column in one.columns if column in plan.labels]
            yield one.line([*(labels[block] for block in rows if one.rows), *columns])


def _published(
    spec: FigureSpec, plan: Plan, changed: Collection[tuple[str, str]], records: Sequence[Record], look: Lookup
) -> tuple[Mapping[str, Any], ...]:
    """Return the published points that stand. Raises UserError for one whose column or panel there is not."""
    stand = tuple(point for point in spec.published if _stands(point, plan, changed))
    shown = [record for record in records if record.block in dict(spec.series)]
    for point in stand:
        for name, axis in (("x", spec.x), ("panel", spec.panels)):
            if name not in point or (name == "x" and axis != COLUMN):
                continue
            where = f"figure {spec.name!r}"
            if not axis:
                raise UserError("a published point names a panel, and there are none", where=where, fix="omit it")
            values = values_of(axis, shown, spec, look, ())
            if point[name] not in values:
                raise unknown(f"{name} of a published point", point[name], map(str, values), where=where)
    return stand


def _stands(point: Mapping[str, Any], plan: Plan, changed: Collection[tuple[str, str]]) -> bool:
    """Return whether a published point is of columns that the plan shows, with the settings of the grid as written."""
    of_grid = {*plan.grid.columns, *plan.labels, *(column for _, column in changed)}
    named = {key for name in ("x", "panel") if (key := str(point.get(name))) in of_grid}
    return named <= {*plan.labels} and not any(
        block == point["series"] and column in (named or plan.labels) for block, column in changed
    )


def check(plan: Plan, composer: Composer) -> None:
    """Raise the UserErrors of `figures` before anything has run: also for a key that no trial has."""
    records = readout.records(plan, Standing())
    compared = any(layout.published for layout in plan.grid.figures.values())
    changed, look = altered(plan, composer) if compared else frozenset[tuple[str, str]](), _lookup(plan)
    for name, layout in plan.grid.figures.items():
        spec = _spec(plan, composer, name, layout)
        shown = [record for record in records if record.block in dict(spec.series)]
        for key in {spec.panels} if spec.kind.over_training or spec.x_measure else {spec.panels, spec.x}:
            if key not in ("", COLUMN) and all(look(record, key) is None for record in shown):
                raise UserError(f"no trial has {key!r}", where=f"figure {name} of grid {plan.name}")
        _published(spec, plan, changed, records, look)


def _spec(plan: Plan, composer: Composer, name: str, layout: GridFigure) -> FigureSpec:
    where = f"figure {name} of grid {plan.name}"
    blocks = plan.grid.blocks
    series = layout.series or {block: "" for block, spec in blocks.items() if not spec.setting_of}
    require_known("block", (*series, *layout.over.values()), blocks, where=where)
    kind, x, y = kind_of_grid(layout.kind, where), layout.x, layout.y
    measure: Measure | None = None
    measures: dict[str, Measure] = {}
    if not kind.over_training:
        measure, measures = column_measures(plan, y, _measure(plan, composer, "y", y, where))
    elif y == PERCENT.metric and not layout.curves:
        curve, measures = column_measures(plan, "accuracy", PERCENT)
        measure = replace(curve, name=curve.name or first_metric(plan))
    return FigureSpec(
        name=f"{plan.name}_{name}",
        title=layout.title or f"{plan.title}: {name}",
        kind=kind,
        x=x,
        y=y,
        panels="" if layout.panels == x else layout.panels,
        series=tuple((block, label or plan.grid.label(block)) for block, label in series.items()),
        columns=tuple(plan.labels.items()),
        measure=measure,
        x_measure=_measure(plan, composer, "x", x, where) if kind.x_is_measured else None,
        measures=measures,
        curves=tuple(layout.curves.items()),
        over=layout.over,
        x_label=layout.x_label,
        y_label=layout.y_label,
        at=tuple(layout.at) or (1.0,),
        rule=rule_of(plan, layout.select, f"grid.figures.{name}.select"),
        published=tuple(layout.published),
        footnotes=(*layout.footnotes, *plan.caveats),
    )


def _measure(plan: Plan, composer: Composer, axis: str, name: str, where: str) -> Measure:
    layouts = names("table", composer.folders)
    if name in layouts:
        return Measure.from_mapping(composer.option("table", name), f"conf/table/{name}.yaml")
    metrics = [*METRICS, *(f"{split}/{one}" for split in ("dev", "test") for one in metric_names(plan))]
    if name not in metrics:
        raise unknown(axis, name, [*layouts, *metrics], where=where)
    of_score = name.startswith(("dev/", "test/")) and not name.endswith("/loss")
    return Measure(metric=name, unit="", better="higher" if of_score or name in GAINS else "lower")


def first_metric(plan: Plan) -> str:
    """Return the name of the columns' first metric, "metric" if they have several."""
    names = {metric.display or metric.name for metric in metrics_of(plan, "metric").values() if metric is not None}
    return next(iter(names)) if len(names) == 1 else "metric"


def _lookup(plan: Plan) -> Lookup:
    """Return a function (record, key) -> the trial's value of a key such as "estimator.q", None if it has none.

    A list is a text: one place on an axis.
    """
    settings = cache(lambda trial_id: flatten(plan.every[trial_id].config.to_json()))

    def look(record: Record, key: str) -> Any:
        value = {**settings(record.trial_id), **record.hyperparameters}.get(key)
        return value if isinstance(value, Hashable) else str(value)

    return look
