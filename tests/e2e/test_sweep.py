"""The command line end to end: inline and on Ray, interrupted and killed, resumed, its tables and its MLflow store."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.common import ENVIRONMENT, NOWHERE, in_process, zo
from tests.e2e.conftest import TRIALS
from zo_sweeps.cli.main import main
from zo_sweeps.session import session

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@dataclass
class Sweep:
    """A state folder, and the commands on it."""

    folder: Path
    conf: Path
    tracking: str = NOWHERE

    def arguments(self, executor: str) -> list[str]:
        where = [f"state_dir={self.folder / 'state'}", "--config-dir", str(self.conf)]
        return ["+grid=small", f"executor={executor}", self.tracking, *where]

    def run(self, executor: str = "inline", **environment: str) -> subprocess.CompletedProcess[str]:
        return zo(*self.arguments(executor), cwd=self.folder, **environment)

    def begin(self, executor: str = "inline") -> subprocess.Popen[str]:
        """Started, in a session of its own, and seen to have given out a trial."""
        lines = len(self.ledger())
        with open(self.folder / "log", "a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "zo_sweeps", *self.arguments(executor)],
                cwd=self.folder,
                env={**os.environ, **ENVIRONMENT},
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        deadline = time.monotonic() + 120
        while len(self.ledger()) == lines and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return process

    def ledger(self) -> list[dict[str, Any]]:
        path = self.folder / "state" / "ledger.jsonl"
        lines = path.read_text().splitlines(True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def cells(self) -> list[dict[str, str]]:
        """The accuracy table's cells, without anything that time has to do with."""
        state = f"state_dir={self.folder / 'state'}"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert main(["table", "+grid=small", state, "--format", "csv", "--table", "accuracy"]) == 0
        return list(csv.DictReader(io.StringIO(printed.getvalue())))

    def finished(self) -> Counter[str]:
        return Counter(entry["trial_id"] for entry in self.ledger() if entry["state"] == "SUCCEEDED")


@pytest.fixture
def sweep(tmp_path: Path, conf: Path, tracking: str) -> Sweep:
    return Sweep(tmp_path, conf, f"tracking.uri={tracking}")


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory, conf: Path) -> Sweep:
    """An undisturbed run in one process: this one, which has imported everything."""
    sweep = Sweep(tmp_path_factory.mktemp("s"), conf)
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(session, "STORE_SECONDS", 0.1)
        patch.setenv("COLUMNS", "1000")
        assert main(sweep.arguments("inline")) == 0
    assert f"{TRIALS} succeeded; {TRIALS} run now" in printed.getvalue()
    assert "next: python -m zo_sweeps ui" in printed.getvalue()
    return sweep


def test_every_cell_is_filled(inline: Sweep) -> None:
    *cells, chance, majority = inline.cells()
    assert [cell["row"] for cell in (*cells, chance, majority)] == ["Zero-shot", "FO", "ZO", "chance", "majority class"]
    assert all(0 <= float(cell["mean"]) <= 100 for cell in (*cells, chance, majority))
    assert [(cell["finished"], cell["planned"]) for cell in cells] == [("1", "1"), ("2", "2"), ("4", "4")]
    assert json.loads(cells[2]["selected"])


def test_the_same_command_again_runs_nothing(inline: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    lines = len(inline.ledger())
    said = in_process(capsys, *inline.arguments("inline"))
    assert re.search(rf"; 0 run now in \d+ s, {TRIALS} already done before", said), said
    assert len(inline.ledger()) == lines


@pytest.mark.long
def test_ray_gives_the_same_cells(inline: Sweep, sweep: Sweep) -> None:
    done = sweep.run("ray")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ray cluster on this machine" in done.stdout
    assert sweep.cells() == inline.cells()


@pytest.mark.chaos  # Ctrl-C in test_ray_backend, and tests/run/test_run_trial.py at every event, stay in the suite
def test_five_kills_at_random_moments_change_nothing(inline: Sweep, sweep: Sweep) -> None:
    """SIGKILL to the driver; the last of the five is of a driver with a Ray cluster."""
    rng = random.Random(20240915)
    killed_at = []
    for executor in ("inline", "inline", "inline", "inline", "ray"):
        process = sweep.begin(executor)
        time.sleep(rng.uniform(0.1, 2.0))
        process.kill()
        process.wait(timeout=30)
        killed_at.append(len(sweep.finished()))
    done = sweep.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert killed_at == sorted(killed_at)
    assert killed_at[0] < TRIALS, "the first kill came before the end"
    assert sweep.cells() == inline.cells()
    assert set(sweep.finished().values()) == {1}, "a trial finished twice"
    over: set[str] = set()
    for entry in sweep.ledger():
        assert entry["trial_id"] not in over, "a finished trial was begun again"
        if entry["state"] == "SUCCEEDED":
            over.add(entry["trial_id"])
    assert len(over) == TRIALS


@pytest.mark.chaos  # by default in two parts: an actor is interrupted (test_ray_backend), and a command goes on
def test_an_interrupt_stops_cleanly_and_the_same_command_goes_on(inline: Sweep, tmp_path: Path, conf: Path) -> None:
    """With its own server and SQLite store, which then has each run and each point once: read with SQL, not MLflow."""
    sweep = Sweep(tmp_path, conf, "tracking.uri=null")
    process = sweep.begin()
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 130
    log = (sweep.folder / "log").read_text()
    assert "the same command goes on" in log
    assert "Traceback" not in log
    before = sweep.finished()
    assert len(before) < TRIALS
    done = sweep.run(PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii(), "a terminal that knows no other characters"
    assert done.stdout.count("SUCCEEDED") == TRIALS - len(before)
    assert f"{TRIALS - len(before)} run now" in done.stdout
    assert sweep.cells() == inline.cells()
    assert set(sweep.finished().values()) == {1}
    with sqlite3.connect(tmp_path / "state" / "mlflow" / "mlflow.db") as store:
        tags = store.execute("select run_uuid, value from tags where key = 'mlflow.parentRunId'").fetchall()
        statuses = Counter(row[0] for row in store.execute("select status from runs"))
        twice = store.execute(
            "select run_uuid, key, step, count(*) from metrics where run_uuid in "
            "(select run_uuid from tags where key = 'mlflow.parentRunId') "
            "group by run_uuid, key, step having count(*) > 1"
        ).fetchall()
        losses = store.execute("select run_uuid, count(*) from metrics where key = 'train/loss' group by run_uuid")
        counts = sorted(row[1] for row in losses)
    assert len({child for child, _ in tags}) == len(tags) == TRIALS
    assert len({parent for _, parent in tags}) == 1
    assert statuses == {"FINISHED": TRIALS + 1}
    assert twice == []
    assert counts == [10, 10, 24, 24, 24, 24], "every step of every trained trial, once"


def test_a_trial_can_be_forced(inline: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    cells = inline.cells()
    forced = cells[0]["trial_ids"].split()[0]
    said = in_process(capsys, *inline.arguments("inline"), "--rerun", forced)
    assert re.search(rf"; 1 run now in .*, {TRIALS - 1} already done before", said), said
    assert inline.cells() == cells


def test_tables_come_in_every_format_from_the_last_sweep(inline: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    state = f"state_dir={inline.folder / 'state'}"
    markdown = in_process(capsys, "table", state, "--format", "md")
    assert re.search(r"\| *ZO *\|", markdown)
    out = inline.folder / "out.tex"
    assert in_process(capsys, "table", state, "--format", "latex", "--output", str(out)) == ""
    written = out.read_text()
    assert written.count(r"\begin{table") == written.count(r"\end{table") == 2


def test_the_status_says_where_a_sweep_stands(inline: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    state = f"state_dir={inline.folder / 'state'}"
    text = in_process(capsys, "status", state)
    assert "not running" in text
    assert re.search(r"ZO +4 +4", text)
    trial = inline.cells()[2]["trial_ids"].split()[0]
    one = in_process(capsys, "status", trial, state)
    assert "state succeeded" in one
    assert "step 24/24" in one
    assert re.search(r"test/metric +0\.\d", one)
