"""A sweep of real trials on a cluster that falls apart under it: every trial once, every number as if undisturbed."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.common import ENVIRONMENT, zo
from tests.e2e.conftest import FIXED, SMALL
from tests.plan.common import write_grid
from tests.schedule.nodes import Cluster, cluster, wait_for
from zo_sweeps.record import server

# A busy machine takes its time: what must not happen is that nothing goes on.
pytestmark = [pytest.mark.multiprocess, pytest.mark.chaos, pytest.mark.timeout(1800)]
PATIENCE = 120.0  # seconds in which some trial ends

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
INLINE = """
import sys
from pathlib import Path
from zo_sweeps.config.composer import Composer
from zo_sweeps.plan.build import build
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.schedule.inline_backend import InlineBackend
from zo_sweeps.schedule.ledger import Ledger
from zo_sweeps.schedule.sweep import Sweep
state = Path(sys.argv[1])
plan = build(Composer(sys.argv[3:], [sys.argv[2]]))
with Ledger(state) as ledger:
    print(Sweep(plan.trials, InlineBackend(), JournalStore(state), ledger).run())
"""


class Driver:
    """A sweep on a cluster, as a command of its own; what it says goes to `log`."""

    def __init__(self, folder: Path, conf: Path, nodes: Cluster, uri: str, grid: str = "mixed") -> None:
        self.folder, self.state, self.log = folder, folder / "state", folder / "log"
        where = [f"state_dir={self.state}", f"tracking.uri={uri}", f"cluster.address={nodes.address}"]
        self.arguments = [f"+grid={grid}", "device.kind=cpu", "--config-dir", str(conf)]
        self.environment = {**os.environ, **ENVIRONMENT, **nodes.token}
        self.process = self._start(where)

    def _start(self, where: list[str]) -> subprocess.Popen[str]:
        with open(self.log, "a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "zo_sweeps", *self.arguments, *where],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def ledger(self) -> list[dict[str, Any]]:
        return ledger_of(self.state)

    def done(self) -> int:
        return sum(entry["state"] == "SUCCEEDED" for entry in self.ledger())

    def lost(self) -> list[dict[str, Any]]:
        return [entry for entry in self.ledger() if entry["state"] == "LOST"]

    def until(self, trials: int) -> None:
        """That many trials have succeeded; some trial in every `PATIENCE`."""
        self._while_trials_end(lambda: self.done() >= trials or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()

    def finish(self) -> int:
        """Its exit status."""
        self._while_trials_end(lambda: self.process.poll() is not None)
        return self.process.wait()

    def _while_trials_end(self, over: Callable[[], bool]) -> None:
        while not over():
            done = self.done()
            wait_for(lambda n=done: over() or self.done() > n, PATIENCE, f"another trial\n{self.log.read_text()}")


def ledger_of(state: Path) -> list[dict[str, Any]]:
    path = state / "ledger.jsonl"
    lines = path.read_text().splitlines(True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def outcomes(state: Path) -> dict[str, Any]:
    """Everything of every result that does not depend on time and place."""
    found = {}
    for entry in ledger_of(state):
        if entry["state"] == "SUCCEEDED":
            assert entry["trial_id"] not in found, "a trial that succeeded twice"
            metrics = {k: v for k, v in entry["outcome"]["metrics"].items() if k.startswith(("dev/", "test/"))}
            found[entry["trial_id"]] = (metrics, entry["outcome"].get("selected_step"), entry["outcome"]["steps_done"])
    return found


def cells(folder: Path, conf: Path, state: Path) -> list[dict[str, str]]:
    arguments = ["+grid=mixed", "device.kind=cpu", "--config-dir", str(conf), f"state_dir={state}"]
    done = zo("table", *arguments, "--format", "csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("conf"), MIXED, "mixed")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, conf: Path) -> Path:
    """The state folder of the same trials, run one after the other in one process."""
    state = tmp_path_factory.mktemp("inline")
    command = [sys.executable, "-c", INLINE, str(state), str(conf), "+grid=mixed", "device.kind=cpu"]
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True)
    assert len(outcomes(state)) == TRIALS, done.stdout + done.stderr
    return state


@pytest.fixture
def tracking(tmp_path: Path) -> Iterator[Path]:
    """The folder of an MLflow server that the test may kill."""
    folder = tmp_path / "tracking"
    yield folder
    server.stop(folder)


def test_sixty_trials_on_a_cluster_that_falls_apart(
    tmp_path: Path, conf: Path, undisturbed: Path, tracking: Path
) -> None:
    """Nodes killed, frozen and started again, a worker killed, the tracking server killed and started again."""
    mlflow = server.start(tracking, stay=True)
    port = int(mlflow.uri.rpartition(":")[2])
    with cluster() as nodes:
        first, second = nodes.add("first"), nodes.add("second")
        jetson = nodes.add("jetson", "jetson-orin-nano", gib=8)
        driver = Driver(tmp_path, conf, nodes, mlflow.uri)
        driver.until(3)
        first.kill()
        driver.until(8)
        second.freeze()
        os.killpg(json.loads((tracking / "mlflow" / "server.json").read_text())["pid"], signal.SIGKILL)
        again = nodes.add("first-again")
        for actor in jetson.actors():
            os.kill(actor, signal.SIGKILL)
        mlflow = server.start(tracking, port, stay=True)
        wait_for(lambda: "second" in {entry["node"] for entry in driver.lost()}, PATIENCE, "the silent node given up")
        second.thaw()
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
    assert any(event["resumed_from"] > 0 for event in resumed), "nothing was resumed"

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
    moved = [t for t in hit if len({e["node"] for e in starts(driver.state, t)}) > 1]
    assert moved, "a trial went on elsewhere"
    assert all(f" {starts(driver.state, t)[-1]['node']} (" in places[runs[t]] for t in moved)
    shown = zo("status", moved[0], "+grid=mixed", "device.kind=cpu", "--config-dir", str(conf),
               f"state_dir={driver.state}", cwd=tmp_path).stdout  # fmt: skip
    assert f"attempt 2 on {starts(driver.state, moved[0])[1]['node']} (" in shown


def starts(state: Path, trial_id: str) -> list[dict[str, Any]]:
    lines = (state / "journal" / trial_id[:2] / f"{trial_id}.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["type"] == "start"]


def test_a_sweep_goes_on_by_itself_when_the_head_is_back(tmp_path: Path, conf: Path, tracking: Path) -> None:
    mlflow = server.start(tracking, stay=True)
    with cluster() as nodes:
        nodes.add("first")
        driver = Driver(tmp_path, conf, nodes, mlflow.uri)
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
