"""The curves of a sweep as plain data for the page's chart: every run of each row's selected setting."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from zo_sweeps.plan.build import Plan
from zo_sweeps.record.journal import JournalStore, trail
from zo_sweeps.results import tables as readout
from zo_sweeps.results.compare import of_cell
from zo_sweeps.results.findings import forwarded_per_step
from zo_sweeps.results.measures import column_measures, first_metric
from zo_sweeps.results.sweep_figures import PERCENT
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tables import Rule, Table
from zo_sweeps.tables.figure_kinds.curve import CURVE_X, CURVES, windowed
from zo_sweeps.tables.figures import TOLD_APART
from zo_sweeps.tables.select import select, settings
from zo_sweeps.tables.stats import CONFIDENCE
from zo_sweeps.tables.text_cells import plain, value_text

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
                values = (f"{key.rpartition('.')[2]} {plain(one)}" for key, one in chosen.hyperparameters.items())
                parts.append({"column": i, "setting": ", ".join(values), "runs": runs})
                scores += [score for score in [chosen.mean(rule.metric)] if score is not None]
        if parts:  # the mean over its columns of what its setting is selected by, the lower the better
            score = (1 if rule.mode == "min" else -1) * fmean(scores) if scores else math.inf
            rows.append({"label": plan.grid.label(block), "parts": parts, "shown": score})
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


DEGREES = 60  # of freedom, up to which Student's quantile is listed; the last one stands for more


def quantiles() -> list[float]:
    """Return Student's two-sided quantile at CONFIDENCE for 1, 2, …, DEGREES degrees of freedom."""
    from scipy.special import stdtrit

    return [round(float(stdtrit(k, (1 + CONFIDENCE) / 2)), 4) for k in range(1, DEGREES + 1)]


def rows_data(plan: Plan, tables: Sequence[Table], state_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of a sweep, each with its cells that have a value: by measure, column and seed.

    Cells of test scores have their runs' predictions, a bit per example, by the digest of the test rows. Rows without
    any value are left out. Cost: reads the journals of the runs behind the tables of scores.
    """
    journals = JournalStore(state_dir)
    rows = []
    for block in plan.grid.blocks:
        cells: dict[tuple[str, str], dict[str, Any]] = {}
        for table in tables:
            for key, label in table.spec.columns if block in dict(table.rows) else ():
                cell, measure = table.cells[block, key], table.spec.of(key)
                place = "".join(one.text() for one in cell.places)  # costs of different places are not compared
                where = (f"{measure.metric}-{measure.minus}-{measure.ratio} {measure.unit} {place}".rstrip(), label)
                if cell.mean is None or not cell.values or where in cells:
                    continue
                cells[where] = {
                    "key": " ".join(where),
                    "measure": measure.name or table.spec.layout.replace("_", " "),
                    "column": label,
                    "unit": measure.unit,
                    "digits": measure.digits,
                    "text": value_text(cell, table, key),
                    "seeds": {str(seed): value for seed, value in cell.values.items()},
                    "trials": list(cell.trial_ids),
                    "right": [
                        {"rows": made.rows, "right": "".join("01"[right] for right in made.right)}
                        for made in (of_cell(cell, journals) if measure.metric.startswith("test/") else ())
                    ],
                }
        if cells:
            rows.append({"block": block, "label": plan.grid.label(block), "cells": list(cells.values())})
    return rows


FOLDER = Path(__file__).parent / "web" / "uplot"


@cache
def chart_library() -> tuple[str, str]:
    """Return the chart library (script, style), the script with its licence as a comment.

    Raises ValueError if a file is not the one that was published.
    """
    source = json.loads((FOLDER / "SOURCE.json").read_text(encoding="utf-8"))
    texts = []
    for name, digest in source["sha256"].items():
        content = (FOLDER / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"{name} is not that of {source['name']} {source['version']}")
        texts.append(content.decode().strip())
    script, style = texts
    licence = (FOLDER / "LICENSE").read_text(encoding="utf-8").strip()
    header, _, code = script.partition("\n")  # the library's own comment, which has its address
    assert header.startswith("/*!")
    return f"/* {source['name']} {source['version']}\n\n{licence}\n*/\n{code}", style
