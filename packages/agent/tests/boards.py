"""Boards as a user has them: `zo-sweeps agent join` in a process of its own, perhaps with a Python of its own.

The environment variable ZO_BOARDS names further interpreters, separated by colons, each with the libraries of a board:

    python3.12 -m venv BOARD && BOARD/bin/pip install -c constraints.txt torch ./packages/agent/board
    ZO_BOARDS=BOARD/bin/python make test ARGS="-m chaos packages/agent/tests/test_behind_nat.py"

They run the code of this checkout.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from machines import PATIENCE, environment, kill_tree
from tests.conftest import REPO
from tests.schedule.nodes import wait_for

CODE = f"{REPO}:{REPO}/packages/agent:{REPO}/packages/ray"
PROFILE = "name: {name}\ndisplay: A board\nkind: cpu\nmemory_gb: 8\nunified: true\n"


def write_profile(conf: Path, name: str) -> None:
    """A device profile of a board."""
    (conf / "device").mkdir(parents=True, exist_ok=True)
    (conf / "device" / f"{name}.yaml").write_text(PROFILE.format(name=name))


def other_pythons() -> dict[str, str]:
    """Version -> interpreter, of ZO_BOARDS, without the versions of this one. Skips if there is none."""
    found = {}
    for path in filter(None, os.environ.get("ZO_BOARDS", "").split(":")):
        asked = subprocess.run([path, "-c", "import platform; print(platform.python_version())"], capture_output=True)
        found[asked.stdout.decode().strip()] = path
    others = {version: path for version, path in found.items() if version != sys.version.split()[0]}
    if not others:
        pytest.skip("no other Python: ZO_BOARDS names none (packages/agent/tests/boards.py)")
    return others


class Board:
    """A machine that dials out.

    Args:
        folder: its home.
        url: of the head's gateway.
        words: further words of `agent join`.
        name: under which it registers; also its device profile in `conf`.
        python: its interpreter.
        prefix: of its commands.
    """

    def __init__(
        self, folder: Path, url: str, conf: Path, *words: str, name: str, python: str = sys.executable, prefix=()
    ) -> None:
        self.folder, self.name, self._log = folder, name, folder / "log"
        folder.mkdir(exist_ok=True)
        self._command = [*prefix, python, "-m", "zo_sweeps_agent", "agent", "join", url]
        self._command += ["--device", name, "--name", name]
        self._command += ["--config-dir", str(conf), "--cpus", "1", *words]
        self.process: Any = None

    @property
    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def join(self, code: str = "") -> float:
        """Start it, and wait until it has joined; the seconds that took."""
        before, began = self.said.count("joined"), time.monotonic()
        words = ["--code", code] if code else []
        with self._log.open("a") as log:
            command, env = [*self._command, *words], environment(self.folder, PYTHONPATH=CODE)
            self.process = subprocess.Popen(command, env=env, cwd=self.folder, stdout=log, stderr=log)
        wait_for(lambda: self.said.count("joined") > before or self.process.poll() is not None, PATIENCE, "the board")
        assert self.process.poll() is None, self.said
        return time.monotonic() - began

    def leave(self) -> int:
        """Its exit status after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return int(self.process.wait(60))

    def kill(self) -> None:
        """As a power cut: the agent and its trials' processes at once."""
        if self.process is not None:
            kill_tree(self.process)
