"""The command line as a user types it: in a process of its own, or in this one where nothing depends on that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPO
from zo_sweeps.cli.main import main
from zo_sweeps.session import session

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "NO_COLOR": "1",
    "COLUMNS": "1000",
    "PYTHONPATH": str(REPO),
}


NOWHERE = "tracking.uri=http://127.0.0.1:9"  # nothing listens there: starting a server takes longer than a small sweep


def zo(*arguments: object, cwd: Path, timeout: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zo_sweeps", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def in_process(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command here and return its output; a sweep with NOWHERE does not wait for its server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "STORE_SECONDS", 0.1)
        patch.setenv("COLUMNS", "1000")
        status = main(arguments)
    out, err = capsys.readouterr()
    assert status == 0, out[-2000:] + err[-2000:]
    return out
