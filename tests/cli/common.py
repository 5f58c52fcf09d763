"""The command line as a user types it: a process of its own, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPO

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "NO_COLOR": "1",
    "COLUMNS": "120",
    "PYTHONPATH": str(REPO),
}


def zo(*arguments: object, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zo_sweeps", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
