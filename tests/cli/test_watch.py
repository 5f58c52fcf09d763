"""`status --watch`, beside a sweep that runs in another process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import REPO
from zo_sweeps.schedule.live import read_live

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]


def test_watch_follows_a_sweep_of_another_terminal_to_its_end(tmp_path: Path) -> None:
    state = f"state_dir={tmp_path}"
    environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "zo_sweeps"]
    words = ["+grid=quickstart", "executor=inline", "scale=smoke", "grid.seeds=[0]", "estimator.q=1", state]
    sweep = subprocess.Popen(
        [*command, *words], env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 120
        while not read_live(tmp_path).get("running"):
            assert time.monotonic() < deadline
            assert sweep.poll() is None
            time.sleep(0.05)
        seen = subprocess.run(
            [*command, "status", state, "--watch"], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert seen.returncode == 0, seen.stderr
        first, last = seen.stdout.split("quickstart in ")[1], seen.stdout.split("quickstart in ")[-1]
        assert f"running (pid {sweep.pid} on " in first
        assert "running now" in first
        assert "time to go: " in first
        assert sweep.wait(60) == 0
        assert ": not running" in last
        assert "running now" not in last
        once = subprocess.run(
            [*command, "status", state], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert once.stdout == "quickstart in " + last
    finally:
        sweep.kill()
        sweep.wait()
