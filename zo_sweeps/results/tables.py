"""The records, measures and tables of a grid, from its plan and the ledger.

In tables and figures alike, a metric's name, unit and direction come from its task.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product

from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import GridTable, SelectConfig
from zo_sweeps.core.caveats import OTHER_CODE
from zo_sweeps.core.errors import UserError, require_known, unknown
from zo_sweeps.core.place import Place, places
from zo_sweeps.core.trial import ENERGY, SECONDS_TO_TARGET, TO_TARGET, Outcome, Trial, TrialState
from zo_sweeps.methods.metric import Metric, as_mapping
from zo_sweeps.methods.task import Task
from zo_sweeps.methods.trial_config import TrialConfig, code_of
from zo_sweeps.plan.as_written import altered, beside_written, extents
from zo_sweeps.plan.build import Plan
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.spent import dev_within, until
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tables import Record, Table, TableSpec, build
from zo_sweeps.tables.published import load
from zo_sweeps.tables.records import MISSING, NOT_RUN, Flag, Measure, Rule

OTHER = "no published number stands here: the command line gave the table another layout, and so another measure"
NO_NUMBER = "no published number stands beside cells whose settings are not those of the grid as written"


def records(plan: Plan, standing: Standing) -> list[Record]:
    """Return one record per trial and cell. A trial that serves several seeds of a cell (zero-shot) counts once."""
    by_cell: dict[tuple[str, str, str], Record] = {}
    seeds: dict[tuple[str, str, str], dict[int, None]] = {}
    for order, cell in enumerate(plan.cells):
        key = (cell.block, cell.task, cell.trial_id)
        seeds.setdefault(key, {})[cell.seed] = None
        if key in by_cell:
            continue
        trial = plan.every[cell.trial_id]
        state: str = standing.state(cell.trial_id).value
        outcome = standing.outcomes.get(cell.trial_id)
        note = outcome.error if outcome else ""
        if state == TrialState.PENDING.value:
            state, note = (MISSING, plan.missing[cell.trial_id]) if cell.trial_id in plan.missing else (NOT_RUN, "")
        by_cell[key] = Record(
            trial_id=cell.trial_id,
            block=cell.block,
            column=cell.task,
            seed=cell.seed,
            hyperparameters=cell.hyperparameters,
            state=state,
            metrics={
                **(outcome.metrics if outcome else {}),
                **({OTHER_CODE: 1.0} if other_code(trial, outcome) else {}),
            },
            note=note,
            order=order,
            unmeasured=outcome.unmeasured if outcome else {},
            places=places_of(trial, outcome) if outcome else (),
        )
    return [replace(record, also=tuple(seeds[key])[1:]) for key, record in by_cell.items()]


def other_code(trial: Trial, outcome: Outcome | None) -> bool:
    """Return whether a result was measured with other code than today's, which may not even know its options."""
    if outcome is None or not outcome.code:
        return False
    return not isinstance(trial.config, TrialConfig) or outcome.code != code_of(trial.config)


def places_of(trial: Trial, outcome: Outcome) -> tuple[Place, ...]:
    """Return where the attempts at a trial ran, and whether today's code measured there."""
    code = "" if not outcome.code else "other code" if other_code(trial, outcome) else "today's code"
    return places(outcome.device, code)


def tables(
    plan: Plan, composer: Composer, standing: Standing, only: Sequence[str] = (), of: Plan | None = None
) -> list[Table]:
    """Return the grid's tables, in its order.

    Args:
        only: names of tables; default: all.
        of: whose trials they show; default: the plan's own.

    Raises UserError for a name that is not one of the grid's tables, or a layout that does not fit the published table.
    """
    named = plan.grid.tables
    require_known("table", only, named, where=f"grid {plan.name}")
    trials_of = of or plan
    rows = records(trials_of, standing)
    devices = [outcome.device for trial_id, outcome in standing.outcomes.items() if trial_id in plan.every]
    definitions = {
        part: sorted({str(device[key]) for device in devices if (key := f"{part}_definition") in device})
        for part in ("memory", "energy")
    }
    built = []
    plan = beside_written(plan, composer)
    for name in only or named:
        spec = _spec(plan, composer, name, definitions)
        mine = [row for row in rows if row.block in spec.blocks]
        if (target := named[name].target) is not None:
            mine = [_to_target(trials_of, row, target) for row in mine]
        if (seconds := named[name].within) is not None:
            mine = [_within(trials_of, row, seconds) for row in mine]
        if spec.measure.columns:
            spec, mine = _by_metric(spec, mine)
        built.append(build(spec, mine, load(spec.published, composer.folders) if spec.published else None))
    return built


def _by_metric(spec: TableSpec, rows: Sequence[Record]) -> tuple[TableSpec, list[Record]]:
    """Return a table with a column for each of its measure's metrics, and the records of each of these columns.

    A metric that is 0 in all records has no column.
    """
    every = {label: spec.measure.of_column(label) for label in spec.measure.columns}
    lacking = {label for label, one in every.items() if rows and not any(r.metrics.get(one.metric, 1) for r in rows)}
    shown = {label: measure for label, measure in every.items() if label not in lacking}
    keys = [(column, label, f"{column}/{label}") for column, _ in spec.columns for label in shown]
    labels = dict(spec.columns)
    by_metric = replace(
        spec,
        columns=tuple((key, f"{labels[column]}, {label}" if len(labels) > 1 else label) for column, label, key in keys),
        searches=tuple({column: (key, labels[column]) for column, _, key in reversed(keys)}.values())[::-1],
        measures={key: shown[label] for _, label, key in keys},
        published_columns={key: name for _, label, key in keys if (name := shown[label].published)},
        flags=tuple(
            replace(flag, columns=tuple(key for column, _, key in keys if column in flag.columns))
            for flag in spec.flags
        ),
        altered=frozenset((block, key) for block, at in spec.altered for column, _, key in keys if column == at),
        extents={(block, key): found for (block, at), found in spec.extents.items() for c, _, key in keys if c == at},
    )
    return by_metric, [replace(row, column=key) for row in rows for column, _, key in keys if column == row.column]


def _to_target(plan: Plan, record: Record, target: float) -> Record:
    """Return a record with what its trial spent until the task's first metric on dev reached a target."""
    if not record.is_result or SECONDS_TO_TARGET in record.unmeasured:
        return record
    higher = TrialConfig.task_of(plan.every[record.trial_id].config).metric[0].better == "higher"
    events = JournalStore(plan.config.folder).read(record.trial_id, ended=True)
    spent = until(events, lambda metric: metric >= target if higher else metric <= target)
    return replace(record, metrics={**record.metrics, **spent})


def _within(plan: Plan, record: Record, seconds: float) -> Record:
    """Return a record with the dev scores of the step that its trial would have selected after so many seconds."""
    trial = plan.every[record.trial_id]
    if not record.is_result or not trial.steps:
        return record
    sign = -1 if TrialConfig.task_of(trial.config).metric[0].better == "higher" else 1
    events = JournalStore(plan.config.folder).read(record.trial_id, ended=True)
    kept = {name: value for name, value in record.metrics.items() if not name.startswith("dev/")}
    by_metric = trial.config.to_json()["train"]["select"] == "metric"
    by = lambda event: sign * event.metric if by_metric else event.loss
    return replace(record, metrics={**kept, **dev_within(events, seconds, by)})


def check(plan: Plan, composer: Composer) -> None:
    """Raise the UserErrors of `tables` before anything has run."""
    as_it_is = replace(plan, altered=frozenset(), extents={})
    tables(as_it_is, composer, Standing(), of=replace(as_it_is, cells=()))


def _spec(plan: Plan, composer: Composer, name: str, definitions: Mapping[str, Sequence[str]]) -> TableSpec:
    layout, blocks, changed = plan.grid.tables[name], plan.grid.blocks, altered(plan, composer)
    where = f"table {name} of grid {plan.name}"
    require_known("block", filter(None, (*layout.rows, *layout.over.values(), layout.beyond)), blocks, where=where)
    file = f"conf/table/{layout.layout}.yaml"
    measure = Measure.from_mapping(composer.option("table", layout.layout), file)
    relaid = layout.published and composer.command_line.sets(f"grid.tables.{name}.layout")
    if relaid:  # the published table is of the measure that the grid's file names
        layout = replace(layout, published=None)
    if (measure.metric in TO_TARGET) != (layout.target is not None):
        needs = layout.target is None
        what = f"the layout {layout.layout!r} {'needs a' if needs else 'has no'} target"
        fix = f"grid.tables.{name}.target=0.8" if needs else "use a layout of costs to a target: energy_to_target"
        raise UserError(what, where=where, fix=fix)
    if layout.within is not None and not measure.metric.startswith("dev/"):
        what = f"the layout {layout.layout!r} shows no dev scores, and `within` is of these"
        raise UserError(what, where=where, fix="use dev_accuracy or dev_loss")
    measure, measures = column_measures(plan, layout.layout, measure)
    names = _names(plan, layout.layout, measure, measures)
    if measure.metric.startswith("dev/") and measure.name and "dev" not in measure.name.split():
        measure = replace(measure, name=f"{measure.name} on dev")  # a metric's name alone is that of its test score
    trained = {cell.block for cell in plan.cells if plan.every[cell.trial_id].steps} if measure.of_step else ()
    of_step = [block for block in layout.rows if block in trained] or layout.rows
    rows = {block: layout.rows[block] or plan.grid.label(block) for block in of_step}
    shown = {(block, column) for block in rows for column in plan.labels}
    metric = measure.metric
    defined = "memory" if metric.startswith("peak_memory") else "energy" if metric.startswith(ENERGY) else ""
    if not rows:
        raise UserError(f"table {name!r} has no rows", where=f"grid {plan.name}", fix="list them as block: row name")
    return TableSpec(
        name=f"{plan.name}_{name}",
        title=layout.title or f"{plan.title}: {measure.name or name}",
        measure=measure,
        layout=layout.layout,
        measures=measures,
        shares=of_shares(plan, measure),
        rule=rule_of(plan, layout.select, f"grid.tables.{name}.select"),
        rows=tuple(rows.items()),
        columns=tuple(plan.labels.items()),
        caption=_caption(plan, layout, measure),
        published=layout.published or "",
        published_rows={
            block: name
            for block, name in layout.rows.items()
            if layout.published and name and block not in plan.relabelled
        },
        altered=changed,
        extents=extents(plan, composer),
        whole=all(block in blocks and column in plan.labels for block, column in changed),
        footnotes=(*layout.footnotes, *definitions.get(defined, ()), *names),
        flags=_differences(plan, layout, changed),
        average=layout.average,
        rank=layout.rank,
        largest=layout.largest,
        over=layout.over,
        beyond=layout.beyond,
        may_differ=tuple(layout.may_differ),
        setting_of={block: blocks[block].setting_of for block in rows if blocks[block].setting_of},
        caveats=(
            *plan.caveats,
            *([NO_NUMBER] if layout.published and changed & shown else []),
            *([OTHER] if relaid else []),
        ),
    )


def _caption(plan: Plan, layout: GridTable, measure: Measure) -> str:
    if layout.within is not None:
        return f"Within {layout.within:g} seconds of training steps."
    if layout.target is not None:
        return f"Target: {layout.target:g} on dev, of the task's first metric."
    others = {*layout.over.values()} if measure.paired and not layout.title else ()
    return f"Minus {', '.join(map(plan.grid.label, others))}." if len(others) == 1 else ""


def _differences(plan: Plan, layout: GridTable, changed: Collection[tuple[str, str]]) -> tuple[Flag, ...]:
    """Return what differs from the paper in cells that the table shows with the settings of the grid as written."""
    flags = []
    for one in (*plan.grid.differs, *layout.differs):
        rows = [
            block
            for block in layout.rows
            if not one.rows or {block, layout.over.get(block, block), layout.beyond} & {*one.rows}
        ]
        columns = [column for column in plan.labels if not one.columns or column in one.columns]
        if not {*product(rows, columns)} <= {*changed}:
            flags.append(Flag(one.note, tuple(rows) * bool(one.rows), tuple(columns) * bool(one.columns), one.about))
    return tuple(flags)


def column_measures(plan: Plan, layout: str, measure: Measure) -> tuple[Measure, dict[str, Measure]]:
    """Return (the measure of a table, the measures of the columns that differ from it).

    test/metric and dev/metric stand for each column's own metric. Columns whose metric has the unit and the
    direction of the layout (accuracy and F1, in percent) keep the layout's measure; a count of settings always does.

    Args:
        layout: name of the layout; a metric of the same name is not named again.
        measure: of the layout.

    Raises UserError if a column mixes metrics of different units or directions.
    """
    split, _, what = measure.metric.partition("/")
    if split not in ("test", "dev") or what == "loss":
        return measure, {}
    metrics = {column: one for column, one in metrics_of(plan, what).items() if one is not None}
    own = {column: _of(metric, measure, layout) for column, metric in metrics.items()}
    every = set(own.values())
    if len(own) == len(plan.labels) and (len(every) == 1 or all(one.name for one in every)):
        measure = next(iter(own.values()))  # no column has the layout's own
    return measure, {column: one for column, one in own.items() if not _alike(one, measure)}


def _names(plan: Plan, layout: str, measure: Measure, apart: Collection[str]) -> list[str]:
    """Return a line that names the metrics of the columns which keep `measure` and have another; none: no line."""
    split, _, what = measure.metric.partition("/")
    metrics = metrics_of(plan, what) if split in ("test", "dev") and what != "loss" and not measure.reaches else {}
    others: dict[str, list[str]] = {}
    for column, metric in metrics.items():
        if metric is not None and column not in apart:
            others.setdefault(metric.display or metric.name, []).append(plan.labels[column])
    known = (measure.name, *layout.split("_"))  # accuracy_difference is of accuracy
    named = [f"{name}: {', '.join(labels)}" for name, labels in others.items() if name not in known]
    return ["; ".join(named)] if len(others) > 1 and named else []


def of_shares(plan: Plan, measure: Measure) -> frozenset[str]:
    """Return the columns whose cells are shares of right test rows, beside which a guess has a score."""
    split, _, what = measure.metric.partition("/")
    metrics = metrics_of(plan, what) if split == "test" and what != "loss" and not measure.paired else {}
    return frozenset(column for column, metric in metrics.items() if metric is not None and metric.share_right)


def rule_of(plan: Plan, own: SelectConfig | None, key: str) -> Rule:
    """Return the rule by which a table or a figure selects settings: its own, which `key` sets, or the grid's.

    Raises UserError for an own rule that the trials did not follow when others were stopped, and as `_check_rule`.
    """
    of_grid = plan.grid.select
    chosen = own or of_grid
    where = f"{key} of grid {plan.name}"
    if own and own.seeds is not None:
        what = "`seeds` decides which trials run, and only the grid's does"
        raise UserError(what, where=where, fix="use grid.select.seeds")
    if (chosen.metric, chosen.mode) != (of_grid.metric, of_grid.mode) and any(map(_stops, plan.every.values())):
        what = f"{of_grid.metric} ({of_grid.mode}) stops settings: {chosen.metric} ({chosen.mode}) selects of the rest"
        fix = f"{key}=null, or leave out grid.select.seeds and train.halving"
        raise UserError(what, where=where, fix=fix)
    rule = Rule(chosen.metric, chosen.mode, of_grid.seeds)
    _check_rule(plan, rule, key if own else "grid.select")
    return rule


def _stops(trial: Trial) -> bool:
    """Return whether a trial is stopped, or never starts, where others of its search are better."""
    return bool(trial.config.to_json()["train"].get("halving_among"))


def _check_rule(plan: Plan, rule: Rule, key: str) -> None:
    """Raise UserError if no task has the rule's metric, or if the rule selects the worst value of one."""
    _, _, what = rule.metric.partition("/")
    known = ("loss", "metric", *metric_names(plan))
    if what not in known:
        names = [f"dev/{name}" for name in known]
        raise unknown("metric", rule.metric, names, where=f"{key} of grid {plan.name}")
    if what == "loss":
        if rule.mode == "max":
            what = f"the setting with the highest {rule.metric} would be selected, but a loss is better when lower"
            raise UserError(what, where=f"grid {plan.name}", fix=f"set {key}.mode=min, or select by dev/metric")
        return
    for column, metric in metrics_of(plan, what).items():
        if metric is not None and (rule.mode == "max") != (metric.better == "higher"):
            other = "max" if rule.mode == "min" else "min"
            raise UserError(
                f"column {column!r} is selected by the {'highest' if rule.mode == 'max' else 'lowest'} {rule.metric}, "
                f"but {metric.display or metric.name} is better when {metric.better}",
                where=f"grid {plan.name}",
                fix=f"set {key}.mode={other}, or select by dev/loss",
            )


def metric_names(plan: Plan) -> list[str]:
    """Return the names of all metrics of the grid's tasks."""
    tasks = (TrialConfig.task_of(trial.config) for trial in plan.every.values())
    return sorted({metric.name for task in tasks for metric in task.metric})


def metrics_of(plan: Plan, what: str) -> dict[str, Metric | None]:
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
    if measure.reaches:  # a count of settings: of the metric only its direction matters
        return measure if metric.better == "higher" else replace(measure, reaches=2 - measure.reaches)
    made = replace(measure, **as_mapping(metric))
    if measure.paired:
        made = replace(made, name=measure.name, unit=measure.unit if metric.unit == "%" else metric.unit)
    if _alike(made, measure):
        made = replace(made, digits=measure.digits)
    return replace(made, name="") if made.name == layout or metric.name == layout else made


def _alike(one: Measure, other: Measure) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in ("unit", "unit_size", "better", "reaches"))
