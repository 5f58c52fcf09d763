"""The views of a sweep's page: the tags that MLflow reads, and what a browser makes of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.plan.common import named
from tests.record import made_up
from zo_sweeps.core.trial import StoredConfig
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.sweep_book import SweepInfo
from zo_sweeps_tracking import rows as views
from zo_sweeps_tracking.rows import trial_tags
from zo_sweeps_tracking.runs import pages
from zo_sweeps_tracking.store import MlflowMirror

SWEEP = SweepInfo("5weeb", "demo_grid", "demo_grid · smoke", "python -m zo_sweeps +grid=demo_grid")
CHROMIUM = shutil.which("chromium")
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
QUIET += ["--disable-background-networking", "--disable-component-update", "--window-size=1280,800"]


@pytest.mark.unit
@pytest.mark.parametrize("view", [views.TABLE, views.CURVES])
def test_a_link_names_its_tag(view: str) -> None:
    query = parse_qs(views.link("7", "5weeb", view).partition("?")[2])
    assert f"mlflow.sharedViewState.{query['viewStateShareKey'][0]}" in views.view_tags("5weeb", [made_up.trial()])


@pytest.mark.unit
def test_the_views_show_the_metrics_of_all_tasks() -> None:
    one = made_up.trial()
    config = one.config.to_json()
    two = replace(one, config=StoredConfig({**config, "task": {"metric": "f1"}}), task="squad")
    table, curves = (json.loads(state) for state in views.view_tags("5weeb", [one, two]).values())
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
    curves = json.loads(views.view_tags("5weeb", trials)[f"mlflow.sharedViewState.5weeb-{views.CURVES}"])
    (key,) = curves["groupBy"]["groupByKeys"]
    groups = [trial_tags(trial)[key["groupByData"]] for trial in trials]
    assert groups == ["LoRA-FA (q=1) · SST-2 · lr 0.0001"] * 2 + ["LoRA-FA (q=2) · SST-2 · lr 0.0001"] * 2


@pytest.mark.unit
def test_a_column_of_what_all_trials_share_is_left_out() -> None:
    one = made_up.trial()
    estimator = {**one.config.to_json()["estimator"], "eps": 1e-4}
    two = replace(one, config=StoredConfig({**one.config.to_json(), "estimator": estimator}), task="rte")
    for trials, more in (((one,), set()), ((one, two), {"params.`estimator.eps`", "tags.`zo.task`"})):
        columns = json.loads(views.view_tags("5weeb", trials)["mlflow.sharedViewState.5weeb-trials"])["selectedColumns"]
        assert {column for column in columns if "eps" in column or "task" in column} == more
    unused = named(
        "quickstart", "~grid.blocks.mezo"
    ).trials  # backpropagation has no eps, though its configuration has the default
    assert "estimator.eps" not in views.view_tags("5weeb", unused)["mlflow.sharedViewState.5weeb-trials"]


@pytest.mark.unit
def test_a_name_begins_with_what_tells_a_trial_from_its_sweep() -> None:
    long = "LoRA-FA of a long description"
    trials = [made_up.trial(seed, lr=lr, q=q, name=long) for seed in (0, 1) for lr in (1e-4, 1e-3) for q in (1, 4)]
    names = [views.run_name(trial, views.common_parts(trials)) for trial in trials]
    assert names[0] == f"lr 0.0001 · seed 0 · {long} (q=1) · SST-2"
    assert len(set(names)) == len(trials)
    seeds = trials[0], trials[4]
    assert views.run_name(seeds[0], views.common_parts(seeds)) == f"seed 0 · {long} (q=1) · SST-2 · lr 0.0001"
    assert views.run_name(seeds[0], views.common_parts(seeds[:1])) == seeds[0].label


@pytest.mark.multiprocess
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_shows_every_trial_with_accuracy_first(tmp_path: Path, tracking: str) -> None:
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
    for text in (*(views.run_name(made, views.common_parts(trials)) for made in trials), "100 ms"):
        assert text in shown
    headers = dict(re.findall(r'aria-colindex="(\d+)" col-id="([^"]+)"', shown))
    assert [headers[str(place)] for place in range(2, 8)] == [
        "attributes.`Run Name`",
        "runDateAndNestInfo",  # its sign of success or failure
        "metrics.`test/accuracy`",
        "metrics.`selected/dev_accuracy`",
        "params.`update.lr`",
        "params.`estimator.q`",
    ]
