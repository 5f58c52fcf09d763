"""A sweep of real trials on a cluster that falls apart under it: every trial once, every number as if undisturbed."""

from __future__ import annotations

import csv
import io
import os
import signal
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.common import zo
from tests.e2e.conftest import FIXED, SMALL
from tests.e2e.drivers import PATIENCE, Driver, outcomes, run_inline, starts, words
from tests.plan.common import write_grid
from tests.schedule.nodes import cluster, wait_for
from zo_sweeps_tracking import server

pytestmark = [pytest.mark.multiprocess, pytest.mark.chaos, pytest.mark.timeout(1800)]

TRIALS = 60
ZO = {"method": "prge", "estimator": {"q": 2}, "train": {"steps": 12}}
MIXED: dict[str, Any] = {
    **SMALL,
    "name": "mixed",
    "fixed": {**FIXED, "split": {"train": 32, "dev": 8, "test": 8}, "train": {"batch": 2, "eval_every": 3}},
    "seeds": list(range(10)),
    "blocks": {
        "edge": {"label": "edge", "fixed": {**ZO, "device": "jetson-orin-nano"}},
        "any": {"label": "any", "fixed": ZO, "axes": {"update": {"lr": [0.03, 0.1]}}},
        "cpu": {"label": "cpu", "fixed": {**ZO, "device": "cpu"}, "axes": {"update": {"lr": [0.03, 0.1]}}},
        "fo": {"label": "fo", "fixed": {"method": "fo_lora_fa", "update": {"lr": 3e-3}, "train": {"steps": 4}}},
    },
    "tables": {"accuracy": {"layout": "accuracy", "rows": {name: name for name in ("edge", "any", "cpu", "fo")}}},
}


def cells(folder: Path, conf: Path, state: Path) -> list[dict[str, str]]:
    arguments = ["+grid=mixed", "device.kind=cpu", "grid.relabel=true", "--config-dir", str(conf), f"state_dir={state}"]
    done = zo("table", *arguments, "--format", "csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("conf"), MIXED, "mixed")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, conf: Path) -> Path:
    """The state folder of the same trials, run one after the other in one process."""
    state = run_inline(tmp_path_factory.mktemp("inline"), conf, "+grid=mixed", "device.kind=cpu", "grid.relabel=true")
    assert len(outcomes(state)) == TRIALS
    return state


@pytest.fixture
def tracking(tmp_path: Path) -> Path:
    """The folder of an MLflow server that the test may kill."""
    return tmp_path / "tracking"


def test_sixty_trials_on_a_cluster_that_falls_apart(
    tmp_path: Path, conf: Path, undisturbed: Path, tracking: Path
) -> None:
    """Nodes killed, frozen and started again, a worker killed, the tracking server killed and started again."""
    mlflow = server.start(tracking)
    port = int(mlflow.uri.rpartition(":")[2])
    with cluster() as nodes:
        first, second = nodes.add("first"), nodes.add("second")
        jetson = nodes.add("jetson", "jetson-orin-nano", gib=8)
        driver = Driver(tmp_path, words("mixed", conf, mlflow.uri), nodes.address, nodes.token)
        driver.until(3)
        first.kill()
        driver.until(8)
        second.freeze()
        mlflow.close()
        again = nodes.add("first-again")
        for actor in jetson.actors():
            os.kill(actor, signal.SIGKILL)
        server.start(tracking, port)
        wait_for(lambda: "second" in {entry["node"] for entry in driver.lost()}, PATIENCE, "the silent node given up")
        second.thaw()
        wait_for(lambda: driver.runs_on("first-again"), PATIENCE, "a trial on the node that was killed")
        for actor in again.actors():
            os.kill(actor, signal.SIGTERM)
        nodes.add("second-again")
        assert driver.finish() == 0, driver.log.read_text()

    lost = driver.lost()
    assert {entry["node"] for entry in lost} == {"first", "second", "jetson", "first-again"}, "each blow hit a trial"
    assert [entry["node"] for entry in lost if entry.get("blameless")] == ["first-again"]
    hit = list(dict.fromkeys(entry["trial_id"] for entry in lost))
    assert outcomes(driver.state) == outcomes(undisturbed)
    assert len(outcomes(driver.state)) == TRIALS
    assert cells(tmp_path, conf, driver.state) == cells(tmp_path, conf, undisturbed)
    resumed = [event for trial_id in hit for event in starts(driver.state, trial_id)[1:]]
    assert any(event.resumed_from > 0 for event in resumed), "nothing was resumed"

    with sqlite3.connect(tracking / "mlflow" / "mlflow.db") as store:
        runs = dict(store.execute("select t.value, t.run_uuid from tags t where key = 'zo.trial_id'").fetchall())
        rows = store.execute("select count(*) from tags where key = 'zo.trial_id'").fetchone()[0]
        twice = store.execute(
            "select run_uuid, key, step from metrics where key = 'train/loss' or key like 'dev/%' "
            "group by run_uuid, key, step having count(*) > 1"
        ).fetchall()
        curves = dict(
            store.execute("select run_uuid, count(*) from metrics where key = 'train/loss' group by run_uuid")
        )
        places = dict(store.execute("select run_uuid, value from tags where key = 'zo.places'"))
    assert (len(runs), rows, twice) == (TRIALS, TRIALS, [])
    assert Counter(curves.values()) == {12: 50, 4: 10}, "one curve a run, each step in it once"
    moved = [t for t in hit if len({e.node for e in starts(driver.state, t)}) > 1]
    assert moved, "a trial went on elsewhere"
    assert all(f" {starts(driver.state, t)[-1].node} (" in places[runs[t]] for t in moved)
    shown = zo("status", moved[0], "+grid=mixed", "device.kind=cpu", "grid.relabel=true", "--config-dir", str(conf),
               f"state_dir={driver.state}", cwd=tmp_path).stdout  # fmt: skip
    assert f"attempt 2 on {starts(driver.state, moved[0])[1].node} (" in shown


def test_a_sweep_goes_on_by_itself_when_the_head_is_back(tmp_path: Path, conf: Path, tracking: Path) -> None:
    mlflow = server.start(tracking)
    with cluster() as nodes:
        nodes.add("first")
        driver = Driver(tmp_path, words("mixed", conf, mlflow.uri), nodes.address, nodes.token)
        driver.until(2)
        before = driver.done()
        nodes.head.kill()
        wait_for(lambda: "Waiting for it" in driver.log.read_text(), 60, "the driver's word")
        nodes.start_head()
        nodes.add("second", "jetson-orin-nano", cpus=2)
        driver.until(before + 3)
        driver.process.send_signal(signal.SIGINT)
        assert driver.process.wait(60) == 130, driver.log.read_text()
    log = driver.log.read_text()
    assert f"the Ray head at {nodes.address} is gone; start it again" in log
    assert "Traceback" not in log
    over: set[str] = set()
    for entry in driver.ledger():
        assert entry["trial_id"] not in over, "a finished trial was begun again"
        if entry["state"] == "SUCCEEDED":
            over.add(entry["trial_id"])
    assert all(entry["state"] not in ("LOST", "FAILED") for entry in driver.ledger()), "that is no trial's fault"
