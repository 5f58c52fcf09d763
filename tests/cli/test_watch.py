"""`status --watch`, beside a sweep that runs in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.common import ENVIRONMENT, NOWHERE, in_process
from zo_sweeps.schedule.snapshot import read_live

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

SWEEP = """
import json, sys
from zo_sweeps.cli.main import main
from zo_sweeps.session import session

session.STORE_SECONDS = 0.1  # no tracking server is waited for
sys.exit(main(json.loads(sys.argv[1])))
"""


@pytest.mark.long
def test_watch_follows_a_sweep_of_another_process_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = f"state_dir={tmp_path}"
    words = ["+grid=quickstart", "executor=inline", "scale=smoke", "grid.seeds=[0]", "estimator.q=1", state, NOWHERE]
    sweep = subprocess.Popen(
        [sys.executable, "-c", SWEEP, json.dumps(words)],
        env={**os.environ, **ENVIRONMENT},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not ((live := read_live(tmp_path)) and live["running"]):
            assert time.monotonic() < deadline
            assert sweep.poll() is None
            time.sleep(0.05)
        seen = in_process(capsys, "status", state, "--watch")
        first, last = seen.split("quickstart in ")[1], seen.split("quickstart in ")[-1]
        assert f"running (pid {sweep.pid} on " in first
        assert "running now" in first
        assert "time to go: " in first
        assert sweep.wait(60) == 0
        assert ": not running" in last
        assert "running now" not in last
        assert in_process(capsys, "status", state) == "quickstart in " + last
    finally:
        sweep.kill()
        sweep.wait()
