"""A trial's events as MLflow rows (parameters, tags, metric points), and the views of a sweep's page. Pure functions.

The same events always give the same rows, and MLflow ignores a row that it already has, so a resend adds nothing.
MLflow keeps the state of a shared view (columns, order, charts) as JSON in a tag of the experiment, and a link names
the tag. Nothing here imports MLflow.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, uuid5

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import End, Event, PeersReady, ScoredDev, ScoredTest, Sensors, SquaredGradients, Start, Steps
from zo_sweeps.core.memory_parts import TOTAL
from zo_sweeps.core.trial import Config, Outcome, Trial, TrialState, parts_of
from zo_sweeps.core.units import metric_text
from zo_sweeps.methods.perturbation import Reads
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.record.journal import places, scalars
from zo_sweeps.record.sweep_book import SweepInfo
from zo_sweeps.results.trial_record import flat

_BETWEEN = " · "  # the parts of a label
CURVE_POINTS = 1000  # points per curve, at most about so many, however long the trial
MAX_PARAM, MAX_TAG = 6000, 8000  # an MLflow 3 server's limits, in characters

# Tags of an ended trial -> its metrics that they hold for the eye, as "103 ms": MLflow prints a metric in raw digits.
AS_TEXT = {"zo.step_time": "seconds_per_step", "zo.memory": TOTAL, "zo.peak_memory": "peak_memory_bytes"}

RUN_STATUS = {  # of MLflow, which has only five; the tag `zo.state` holds the exact state
    TrialState.PENDING: "SCHEDULED",
    TrialState.RUNNING: "RUNNING",
    TrialState.SUCCEEDED: "FINISHED",
    TrialState.DIVERGED: "FAILED",  # a result, but never shown as a run that finished
    TrialState.OUT_OF_MEMORY: "FAILED",
    TrialState.FAILED: "FAILED",
    TrialState.LOST: "KILLED",
    TrialState.CANCELLED: "KILLED",
    TrialState.PAUSED: "SCHEDULED",
    TrialState.STOPPED: "KILLED",
}


class MetricPoint(NamedTuple):
    """One metric value. `time` is in milliseconds."""

    key: str
    value: float
    time: int
    step: int


def params(config: Config) -> dict[str, str]:
    """Return the resolved config flattened to dotted names, with lists as JSON.

    Parts that the trial's kind does not use are left out: a zero-shot run has no learning rate.
    """
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
        for key, value in flat(config.to_json()).items()
    }
    with suppress(UserError):  # a member of the user's own, which cannot be read here: the config is whole
        typed = TrialConfig.of(config)  # `seed` and `members` belong to no part
        texts = {key: text for key, text in texts.items() if typed.uses(key) or key in ("seed", "members")}
    return {clean_name(key): text[:MAX_PARAM] for key, text in texts.items()}


def trial_tags(trial: Trial) -> dict[str, str]:
    """Return a trial's tags that are known before it runs."""
    config = trial.config.to_json()
    tags = {
        "zo.trial_id": trial.trial_id,
        "zo.grid": trial.grid,
        "zo.block": trial.block,
        "zo.task": trial.task,
        SETTING: trial.label.removesuffix(f" · seed {config.get('seed')}"),
        "zo.seed": config.get("seed"),
        "zo.model_fingerprint": config.get("model", {}).get("fingerprint"),
        "zo.data_fingerprint": config.get("task", {}).get("fingerprint"),
    }
    return clean_tags(tags)


def common_parts(trials: Iterable[Trial]) -> frozenset[str]:
    """Return the parts that the labels of all these trials have."""
    parts = [frozenset(trial.label.split(_BETWEEN)) for trial in trials]
    return frozenset.intersection(*parts) if parts else frozenset()


def run_name(trial: Trial, common: Collection[str]) -> str:
    """Return a trial's label with what tells it from its sweep first: MLflow shows the first 30 characters of a name.

    The row, its longest part, comes after column, rates and seed, and the parts `common` to all trials last.
    """
    row, *others = trial.label.split(_BETWEEN)
    return _BETWEEN.join(sorted([*others, row] if row not in common else [row, *others], key=common.__contains__))


def event_tags(events: Iterable[Event]) -> dict[str, str]:
    """Return a trial's tags that its events add: device, versions, state, error."""
    tags: dict[str, Any] = {}
    for event in events:
        if isinstance(event, Start):
            tags |= {
                "zo.state": TrialState.RUNNING.value,
                "zo.attempt": event.attempt,
                **_device_tags(event.device),
                **version_tags(event.versions),
            }
            if event.attempt > 1:
                tags |= {"zo.error": "", "zo.unmeasured": ""}  # the earlier attempt's
        elif isinstance(event, End):
            outcome = event.outcome
            tags |= {"zo.state": outcome.state.value, **_device_tags(outcome.device)}
            if outcome.error:
                tags["zo.error"] = outcome.error
            if outcome.unmeasured:
                tags["zo.unmeasured"] = "; ".join(f"{name}: {why}" for name, why in outcome.unmeasured.items())
            if dropped := outcome.metrics.get("directions_dropped"):  # the result differs from one process's
                tags["zo.dropped"] = f"{dropped:.0f} directions of lost or slow peers"
            measured = outcome.metrics
            tags |= {tag: metric_text(name, measured[name]) for tag, name in AS_TEXT.items() if name in measured}
        elif isinstance(event, PeersReady):
            tags["zo.workers"] = ", ".join(event.names)
    return clean_tags(tags)


def place_tags(events: Sequence[Event]) -> dict[str, str]:
    """Return `zo.node`, and `zo.places` of a trial that moved: "nano (jetson-orin-nano), from step 120 desk (cpu)".

    Needs all events of the trial.
    """
    path: list[str] = []
    last = ("", "")
    for node, profile, step in places(events):
        if (node, profile) != last:
            path.append(f"from step {step} {node} ({profile})" if path else f"{node} ({profile})")
            last = (node, profile)
    if not path:
        return {}
    return clean_tags({"zo.node": last[0], "zo.places": ", ".join(path) if len(path) > 1 else None})


def version_tags(versions: Mapping[str, Any]) -> dict[str, Any]:
    """Return `zo.git_commit` and `zo.versions` of `core.host.provenance()`, or of a plain {package: version}."""
    packages = versions.get("packages", versions)
    commit = versions.get("git_commit")
    return {
        "zo.git_commit": f"{commit} (modified)" if commit and versions.get("git_dirty") else commit,
        "zo.versions": ", ".join(f"{name} {version}" for name, version in packages.items()) or None,
    }


def clean_tags(tags: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags as MLflow takes them: text, cut to its limit, without None values."""
    return {key: str(value)[:MAX_TAG] for key, value in tags.items() if value is not None}


def points(trial: Trial, events: Iterable[Event]) -> list[MetricPoint]:
    """Return the metric points of a journal's events, those of the first events first.

    Curves over steps are thinned to step 1 and every k-th, k = ceil(steps / CURVE_POINTS). The rule depends on the
    trial only, so a resend gives the same points. Points that are not finite are left out.
    """
    stride = max(1, math.ceil(trial.steps / CURVE_POINTS))
    parts, mark = 1, 0  # a line of the log: q numbers, as many further ones, a digest
    with suppress(UserError):
        typed = TrialConfig.of(trial.config)
        parts, mark = 1 + bool(typed.estimator.gives), int(typed.perturbation.reads is Reads.DATA)
    metrics: list[MetricPoint] = []
    last = 0  # a worker that was lost may report steps once more
    for event in events:
        time = int(event.time * 1000)
        if isinstance(event, Steps):
            metrics += _curve(event, stride, last, parts, mark)
            last = max(last, event.last)
        elif isinstance(event, (ScoredDev, ScoredTest)):
            split = "test" if isinstance(event, ScoredTest) else "dev"
            named = event.metrics or {metric_of(trial): event.metric}
            scores = {**{clean_name(name): value for name, value in named.items()}, "loss": event.loss}
            metrics += [MetricPoint(f"{split}/{name}", value, time, event.step) for name, value in scores.items()]
        elif isinstance(event, SquaredGradients):
            metrics += [MetricPoint(f"gradients/{name}", one, time, event.step) for name, one in event.covered.items()]
        elif isinstance(event, Sensors):
            values = event.values.items()
            metrics += [MetricPoint(f"phone/{clean_name(name)}", value, time, event.step) for name, value in values]
        elif isinstance(event, End):
            metrics += _summary(trial, event.outcome, time)
    return [p for p in metrics if math.isfinite(p.value)]


def scalar_log(events: Sequence[Event]) -> str:
    """Return the run's scalar log as JSON lines: step, loss, coefs. With config.yaml it rebuilds the weights."""
    lines = (
        json.dumps({"step": step, "loss": loss, "coefs": coefs})
        for step, (coefs, loss) in enumerate(zip(*scalars(events), strict=True), 1)
    )
    return "\n".join(lines) + "\n"


def sweep_note(sweep: SweepInfo, experiment_id: str) -> str:
    """Return the Markdown of the sweep's page in MLflow: the command, and links to the trials' table and curves."""
    table, curves = (link(experiment_id, sweep.sweep_id, view) for view in (TABLE, CURVES))
    command = f"`{sweep.command}`\n\n" if sweep.command else ""
    return f"{command}[All trials]({table}) · [their curves]({curves})\n\n"


def _curve(event: Steps, stride: int, known: int, parts: int, mark: int) -> Iterator[MetricPoint]:
    losses, lines = event.losses, event.coefs or ()
    coefs = [line[: (len(line) - mark) // parts] for line in lines]
    count = len(losses)
    step_ms = 1000 * event.seconds / count if count else 0.0
    last = 0
    for i, loss in enumerate(losses):
        step = event.first + i
        if step <= known or (step != 1 and step % stride):
            continue
        time = int(event.time * 1000 - step_ms * (count - 1 - i))
        yield MetricPoint("train/loss", loss, time, step)
        sizes = [abs(g) for g in coefs[i] if not math.isnan(g)] if i < len(coefs) else []
        if sizes:  # the steepness of f: the mean of |projected_grad| over q directions
            yield MetricPoint("train/projected_grad", sum(sizes) / len(sizes), time, step)
        last = step
    if last:
        for name, value in (
            ("seconds_per_step", event.seconds / count),
            ("joules_per_step", None if event.joules is None else event.joules / count),
            ("celsius", event.celsius),
        ):
            if value is not None:
                yield MetricPoint(f"train/{name}", value, int(event.time * 1000), last)


def _summary(trial: Trial, outcome: Outcome, time: int) -> Iterator[MetricPoint]:
    if outcome.state is TrialState.DIVERGED:
        yield MetricPoint("diverged", 1.0, time, 0)
    for name, value in outcome.metrics.items():
        split, _, what = name.partition("/")
        if split in ("test", "gradients"):
            continue  # already logged by their own events
        if name == "dev/metric" and f"dev/{metric_of(trial)}" in outcome.metrics:
            continue  # the same value under its own name
        if split == "dev":  # the curve dev/... ends at the last step; this is the selected one
            name = f"selected/dev_{metric_of(trial) if what == 'metric' else what}"
        yield MetricPoint(clean_name(name), value, time, 0)
    if "dev/metric" in outcome.metrics:
        yield MetricPoint("selected/step", outcome.selected_step, time, 0)


def metric_of(trial: Trial) -> str:
    """Return the name under which a trial's first metric is logged, such as accuracy."""
    metric = trial.config.to_json().get("task", {}).get("metric", "accuracy")
    metric = metric[0] if isinstance(metric, (list, tuple)) else metric  # selection is by the first
    return clean_name(str(metric.get("name") if isinstance(metric, Mapping) else metric))


def _device_tags(device: Mapping[str, Any]) -> dict[str, Any]:
    runtime = device.get("runtime", "torch")
    parts = [device.get("kind"), device.get("name"), *([] if runtime == "torch" else [runtime])]
    text = " · ".join(str(part) for part in dict.fromkeys(parts) if part and part != "auto")
    definitions = {
        f"zo.{part}_definition": device.get(f"{part}_definition") for part in ("memory", "energy", "condition")
    }
    return {"zo.device": text or None, **definitions}


def clean_name(text: str) -> str:
    """Return a name that MLflow accepts: any character other than letters, digits and `_-. :/` becomes `_`."""
    return re.sub(r"[^\w\-. :/]", "_", text)


TRAINING = "workflowType=machine_learning"  # in an address: MLflow's page for runs, not the one for prompts and traces
TABLE, CURVES = "trials", "curves"  # the views of a sweep
SETTING = "zo.setting"  # tag: what trials that differ in their seeds alone have in common


def link(experiment_id: str, sweep_id: str, view: str) -> str:
    """Return the address of a view, from the server's root."""
    where, mode = f"#/experiments/{experiment_id}/runs?{TRAINING}", {TABLE: "TABLE", CURVES: "CHART"}[view]
    return f"{where}&viewStateShareKey={sweep_id}-{view}&compareRunsMode={mode}"


def view_tags(sweep_id: str, trials: Sequence[Trial]) -> dict[str, str]:
    """Return the experiment's tags that hold the views of a sweep of these trials."""
    query = f"tags.`zo.sweep_id` = '{sweep_id}' and tags.`zo.kind` = 'trial'"
    metrics = list(dict.fromkeys(map(metric_of, _distinct(trials, "task"))))
    some = _distinct(trials, "method", "estimator")
    scales = {params(trial.config).get("estimator.eps") for trial in some} - {None}  # of those that use one
    tasks = {trial.task for trial in trials}
    columns = [
        *(f"metrics.`{split}{name}`" for name in metrics for split in ("test/", "selected/dev_")),
        *(f"params.`{name}`" for name in ("update.lr", "estimator.q", *(["estimator.eps"] if len(scales) > 1 else []))),
        *(f"tags.`zo.{name}`" for name in ("seed", *(["task"] if len(tasks) > 1 else []), "state")),
        *(f"tags.`{name}`" for name in AS_TEXT),
    ]
    # Sorted by name, trials are listed; by date, MLflow's default, they are hidden inside their sweep.
    order = {"orderByKey": "tags.`mlflow.runName`", "orderByAsc": True}
    common = {"searchFilter": query, **order, "selectedColumns": columns}
    # Of the columns that cannot be left out, the date is cut to its sign of the run's end, and the duration comes last.
    pinned = {"attributes.`Run Name`": 225, "runDateAndNestInfo": 44}
    narrow = {"params.`update.lr`": 70, "params.`estimator.q`": 85, "tags.`zo.seed`": 70}
    widths = {**pinned, **{name: narrow.get(name, 100) for name in columns}, "duration": 80}
    by_setting = {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": SETTING}]}
    grouped = {"groupBy": by_setting, "useGroupedValuesInCharts": True}  # a line is the mean of a setting's seeds
    states = {
        TABLE: {**common, "columnOrder": list(widths), "columnWidths": widths},
        CURVES: {**common, **grouped, "runsHiddenMode": "FIRST_20_RUNS", **_charts(metrics)},
    }
    tag = f"mlflow.sharedViewState.{sweep_id}"
    return {f"{tag}-{view}": json.dumps(state, separators=(",", ":")) for view, state in states.items()}


def _distinct(trials: Iterable[Trial], *parts: str) -> Iterable[Trial]:
    """Return a trial for each combination of the objects that these parts of the configurations are."""
    return {tuple(id(parts_of(trial.config).get(part)) for part in parts): trial for trial in trials}.values()


def _charts(metrics: Sequence[str]) -> dict[str, Any]:
    """Return line charts of the losses and the tasks' metrics, over steps and over seconds, and no others."""
    curves = ["train/loss", "dev/loss", *(f"dev/{name}" for name in metrics)]
    sections, charts = [], []
    for name, axis in (("over steps", "step"), ("over seconds", "time-relative")):
        section = _id(name)
        sections.append({"uuid": section, "name": name, "display": True, "isReordered": True, "deleted": False})
        charts += [_chart(metric, axis, section) for metric in curves]
    return {"compareRunCharts": charts, "compareRunSections": sections, "isAccordionReordered": True}


def _chart(metric: str, axis: str, section: str) -> dict[str, Any]:
    return {
        "type": "LINE",
        "uuid": _id(f"{metric} {axis}"),
        "metricSectionId": section,
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "displayName": metric,
        "xAxisKey": axis,
        "useGlobalXaxisKey": False,
        "useGlobalLineSmoothing": True,
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
        "lineSmoothness": 0,
        "selectedXAxisMetricKey": "",
        "ignoreOutliers": False,
        "deleted": False,
        "isGenerated": False,
    }


def _id(text: str) -> str:
    """Return the same id for the same text."""
    return uuid5(NAMESPACE_OID, text).hex
