"""What a sweep's page in MLflow shows: all its trials with what matters of each, and their curves.

MLflow keeps the state of a shared view (columns, order, charts) as JSON in a tag of the experiment, and a link names
the tag. Pure functions, without importing MLflow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from zo_sweeps.core.memory_parts import TOTAL

TRAINING = "workflowType=machine_learning"  # in an address: MLflow's page for runs, not the one for prompts and traces
TABLE, CURVES = "trials", "curves"  # the views of a sweep
_TAG = "mlflow.sharedViewState."
SETTING = "zo.setting"  # tag: what trials that differ in their seeds alone have in common
BY_SETTING = {  # a line is the mean of a setting's seeds
    "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": SETTING}]},
    "useGroupedValuesInCharts": True,
}
_MODE = {TABLE: "TABLE", CURVES: "CHART"}


def link(experiment_id: str, sweep_id: str, view: str) -> str:
    """Return the address of a view, from the server's root."""
    where = f"#/experiments/{experiment_id}/runs?{TRAINING}"
    return f"{where}&viewStateShareKey={sweep_id}-{view}&compareRunsMode={_MODE[view]}"


def tags(sweep_id: str, metrics: Sequence[str]) -> dict[str, str]:
    """Return the experiment's tags that hold the views of a sweep.

    Args:
        metrics: names of the tasks' metrics, such as accuracy.
    """
    query = f"tags.`zo.sweep_id` = '{sweep_id}' and tags.`zo.kind` = 'trial'"
    # Sorted by name, trials are listed; by date, MLflow's default, they are hidden inside their sweep.
    common = {"searchFilter": query, "orderByKey": "tags.`mlflow.runName`", "orderByAsc": True}
    measured = [f"{split}{name}" for name in metrics for split in ("test/", "selected/dev_")]
    columns = [
        *(f"tags.`zo.{name}`" for name in ("state", "task", "seed")),
        *(f"metrics.`{name}`" for name in (*measured, "seconds_per_step", TOTAL, "peak_memory_bytes")),
    ]
    states = {
        TABLE: {**common, "selectedColumns": columns, "columnOrder": []},
        CURVES: {
            **common,
            **BY_SETTING,
            "selectedColumns": columns,
            "runsHiddenMode": "FIRST_20_RUNS",
            **_charts(metrics),
        },
    }
    return {f"{_TAG}{sweep_id}-{view}": json.dumps(state, separators=(",", ":")) for view, state in states.items()}


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
