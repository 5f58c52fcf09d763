"""The curves of a sweep as plain data for the page's chart: every run of each row's selected setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from zo_sweeps.plan.build import Plan
from zo_sweeps.record.curves import trail
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.results import tables as readout
from zo_sweeps.results.figures import PERCENT
from zo_sweeps.results.findings import forwarded_per_step
from zo_sweeps.results.measures import column_measures, first_metric
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tables import Rule
from zo_sweeps.tables.figure_kinds.curve import CURVE_X, CURVES, windowed
from zo_sweeps.tables.figures import TOLD_APART
from zo_sweeps.tables.select import HyperparameterSetting, select, settings
from zo_sweeps.tables.text_cells import plain

FORWARDS = "Forwarded examples (a backward pass counts as two forwards)"
DIGITS = 5  # significant, of a drawn value


def curve_data(plan: Plan, standing: Standing, state_dir: Path) -> dict[str, Any]:
    """Return the chart's data: its axes, columns and rows, and a list of runs per row and column; no `rows` if empty.

    A run has its seed, id, examples forwarded per step, and for each y in CURVES steps, seconds and values. Training
    losses are means over windows. Cost: reads the journals of the selected settings; some kB per run.
    """
    rule, journals = Rule(plan.grid.select.metric, plan.grid.select.mode), JournalStore(state_dir)
    records = readout.records(plan, standing)
    measure, measures = column_measures(plan, "accuracy", PERCENT)
    columns = list(plan.labels)
    rows: list[dict[str, Any]] = []
    shown = dict.fromkeys(record.block for record in records)
    for block in shown:
        parts, scores = [], []
        for i, column in enumerate(columns):
            chosen = select(settings([r for r in records if (r.block, r.column) == (block, column)]), rule)
            if chosen is None:
                continue
            unit = measures.get(column, measure).unit_size
            runs = [_run(plan, standing, journals, record.trial_id, record.seed, unit) for record in chosen.records]
            if any(run["curves"] for run in runs):
                parts.append({"column": i, "setting": _setting(chosen), "runs": runs})
                scores.append(chosen.mean(rule.metric))
        if parts:
            rows.append({"label": plan.grid.label(block), "parts": parts, "shown": _score(scores, rule)})
    if not rows:
        return {}
    drawn = sorted(range(len(rows)), key=lambda i: float(rows[i]["shown"]))[:TOLD_APART]
    for i, row in enumerate(rows):
        row["shown"] = i in drawn
    has = {name for row in rows for part in row["parts"] for run in part["runs"] for name in run["curves"]}
    named = {**CURVES, "dev/metric": (f"Dev {measure.name or first_metric(plan)} ({measure.unit})", 1.0)}
    return {
        "x": [
            *({"key": key, "label": label} for key, label in CURVE_X.items()),
            {"key": "forwards", "label": FORWARDS},
        ],
        "y": [{"key": key, "label": label} for key, (label, _) in named.items() if key in has],
        "columns": [plan.labels[column] for column in columns],
        "rows": rows,
        "best_by": rule.metric,
    }


def _score(values: Sequence[float | None], rule: Rule) -> float:
    """Return the mean over a row's columns of what its setting is selected by, the lower the better."""
    known = [value for value in values if value is not None]
    return (1 if rule.mode == "min" else -1) * fmean(known) if known else math.inf


def _setting(chosen: HyperparameterSetting) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {plain(value)}" for key, value in chosen.hyperparameters.items())


def _run(
    plan: Plan, standing: Standing, journals: JournalStore, trial_id: str, seed: int, metric_unit: float
) -> dict[str, Any]:
    curves = trail(journals.read(trial_id, ended=standing.has_result(trial_id)))
    shown = {}
    for name, (_, unit) in CURVES.items():
        points: Sequence[tuple[int, float, float]] = curves[name]
        if name == "train/loss":
            points = windowed(points)
        if points and points[-1][0] > 0:  # a trial without steps has no curve
            scale = metric_unit if name == "dev/metric" else unit
            steps, times, values = zip(*points, strict=True)
            shown[name] = [list(steps), [_short(t) for t in times], [_short(value / scale) for value in values]]
    each = forwarded_per_step(plan, standing, trial_id)
    return {"id": trial_id, "seed": seed, "forwards": each, "curves": shown}


def _short(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
