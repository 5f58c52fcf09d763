"""The measures of a grid's columns, in tables and figures: a metric's name, unit and direction come from its task."""

from __future__ import annotations

from dataclasses import replace

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods.metric import Metric, as_mapping
from zo_sweeps.methods.task import Task
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Plan
from zo_sweeps.tables.records import Measure, Rule


def column_measures(plan: Plan, layout: str, measure: Measure) -> tuple[Measure, dict[str, Measure]]:
    """Return (the measure of a table, the measures of the columns that differ from it).

    test/metric and dev/metric stand for each column's own metric. Columns whose metric has the unit and the
    direction of the layout (accuracy and F1, in percent) keep the layout's measure.

    Args:
        layout: name of the layout; a metric of the same name is not named again.
        measure: of the layout.

    Raises UserError if a column mixes metrics of different units or directions.
    """
    split, _, what = measure.metric.partition("/")
    if split not in ("test", "dev") or what == "loss":
        return measure, {}
    metrics = {column: one for column, one in _metrics(plan, what).items() if one is not None}
    own = {column: _of(metric, measure, layout) for column, metric in metrics.items()}
    if len(set(own.values())) == 1 and len(own) == len(plan.labels):
        return next(iter(own.values())), {}
    return measure, {column: one for column, one in own.items() if not _alike(one, measure)}


def of_shares(plan: Plan, measure: Measure) -> frozenset[str]:
    """Return the columns whose cells are shares of right test rows, beside which a guess has a score."""
    split, _, what = measure.metric.partition("/")
    metrics = _metrics(plan, what) if split == "test" and what != "loss" else {}
    return frozenset(column for column, metric in metrics.items() if metric is not None and metric.share_right)


def check_rule(plan: Plan, rule: Rule) -> None:
    """Raise UserError if no task has the rule's metric, or if the rule selects the worst value of a column's."""
    _, _, what = rule.metric.partition("/")
    known = ("loss", "metric", *metric_names(plan))
    if what not in known:
        names = [f"dev/{name}" for name in known]
        raise unknown("metric", rule.metric, names, where=f"grid.select of grid {plan.name}")
    for column, metric in _metrics(plan, what).items() if what != "loss" else ():
        if metric is not None and (rule.mode == "max") != (metric.better == "higher"):
            other = "max" if rule.mode == "min" else "min"
            raise UserError(
                f"column {column!r} is selected by the {'highest' if rule.mode == 'max' else 'lowest'} {rule.metric}, "
                f"but {metric.display or metric.name} is better when {metric.better}",
                where=f"grid {plan.name}",
                fix=f"set grid.select.mode={other}, or select by dev/loss",
            )


def metric_names(plan: Plan) -> list[str]:
    """Return the names of all metrics of the grid's tasks."""
    tasks = (TrialConfig.task_of(trial.config) for trial in plan.every.values())
    return sorted({metric.name for task in tasks for metric in task.metric})


def first_metric(plan: Plan) -> str:
    """Return the name of the columns' first metric, "metric" if they have several."""
    names = {metric.display or metric.name for metric in _metrics(plan, "metric").values() if metric is not None}
    return next(iter(names)) if len(names) == 1 else "metric"


def _metrics(plan: Plan, what: str) -> dict[str, Metric | None]:
    """Return column -> the metric of its trials: the task's first, or the one named `what`; None if it has none."""
    tasks: dict[tuple[str, str, tuple[Metric, ...]], Task] = {}
    for cell in plan.cells:
        task = TrialConfig.task_of(plan.every[cell.trial_id].config)
        tasks.setdefault((cell.task, task.name, task.metric), task)
    metrics: dict[str, Metric | None] = {}
    for (column, _, _), task in tasks.items():
        every = task.metric
        metric = every[0] if what == "metric" else next((m for m in every if m.name == what), None)
        known = metrics.setdefault(column, metric)
        if metric is not None and known is not None and as_mapping(metric) != as_mapping(known):
            if (metric.unit, metric.better) == (known.unit, known.better):
                continue
            names = f"{known.display or known.name} and {metric.display or metric.name}"
            raise UserError(
                f"column {column!r} mixes {names}",
                where=f"grid {plan.name}",
                fix="give each metric a column of its own",
            )
    return metrics


def _of(metric: Metric, measure: Measure, layout: str) -> Measure:
    facts = dict(as_mapping(metric))
    made = replace(measure, **facts)
    if _alike(made, measure):
        made = replace(made, digits=measure.digits)
    return replace(made, name="") if made.name == layout or metric.name == layout else made


def _alike(one: Measure, other: Measure) -> bool:
    return (one.unit, one.unit_size, one.better) == (other.unit, other.unit_size, other.better)
