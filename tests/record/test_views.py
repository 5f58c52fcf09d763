"""The views of a sweep's page: the tags that MLflow reads, and what a browser makes of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.record import made_up
from zo_sweeps.record import mlflow_points as views
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.mlflow_points import trial_tags
from zo_sweeps.record.mlflow_store import MlflowMirror, pages
from zo_sweeps.record.sweep_book import SweepInfo

SWEEP = SweepInfo("5weeb", "demo_grid", "demo_grid · smoke", "python -m zo_sweeps +grid=demo_grid")
CHROMIUM = shutil.which("chromium")
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
QUIET += ["--disable-background-networking", "--disable-component-update", "--window-size=2200,1000"]


@pytest.mark.unit
@pytest.mark.parametrize("view", [views.TABLE, views.CURVES])
def test_a_link_names_its_tag(view: str) -> None:
    query = parse_qs(views.link("7", "5weeb", view).partition("?")[2])
    assert f"mlflow.sharedViewState.{query['viewStateShareKey'][0]}" in views.view_tags("5weeb", ["accuracy"])


@pytest.mark.unit
def test_the_views_show_the_metrics_of_all_tasks() -> None:
    table, curves = (json.loads(state) for state in views.view_tags("5weeb", ["accuracy", "f1"]).values())
    for state in (table, curves):
        assert {"metrics.`test/accuracy`", "metrics.`test/f1`", "tags.`zo.task`"} <= {*state["selectedColumns"]}
        assert "'5weeb'" in state["searchFilter"]
    charts = {(chart["metricKey"], chart["xAxisKey"]) for chart in curves["compareRunCharts"]}
    assert {("dev/f1", "step"), ("dev/f1", "time-relative"), ("train/loss", "step")} <= charts
    assert len({chart["uuid"] for chart in curves["compareRunCharts"]}) == len(curves["compareRunCharts"])
    sections = {section["uuid"] for section in curves["compareRunSections"]}
    assert {chart["metricSectionId"] for chart in curves["compareRunCharts"]} == sections


@pytest.mark.unit
def test_a_line_is_the_mean_of_a_settings_seeds() -> None:
    trials = [made_up.trial(seed, q=q) for q in (1, 2) for seed in (0, 1)]
    curves = json.loads(views.view_tags("5weeb", ["accuracy"])[f"mlflow.sharedViewState.5weeb-{views.CURVES}"])
    (key,) = curves["groupBy"]["groupByKeys"]
    groups = [trial_tags(trial)[key["groupByData"]] for trial in trials]
    assert groups == ["LoRA-FA (q=1) · SST-2 · lr 0.0001"] * 2 + ["LoRA-FA (q=2) · SST-2 · lr 0.0001"] * 2


@pytest.mark.multiprocess
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_shows_every_trial_with_its_task_and_metrics(tmp_path: Path, tracking: str) -> None:
    store = JournalStore(tmp_path)
    trials = [made_up.trial(seed, steps=20) for seed in range(3)]
    for made in trials:
        store.append(made.trial_id, made_up.whole(made))
    mirror = MlflowMirror(tracking, SWEEP.grid, SWEEP, tmp_path, say=print)
    for made in trials:
        mirror.register(made)
    assert mirror.drain(120) == 0
    mirror.close(30)
    (page,) = pages(tracking, tmp_path).values()
    command = [str(CHROMIUM), *QUIET, f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=30000"]
    shown = subprocess.run([*command, "--dump-dom", page], capture_output=True, text=True, timeout=120).stdout
    for text in ("zo.task", "zo.state", "test/accuracy", *(made.label for made in trials)):
        assert text in shown
