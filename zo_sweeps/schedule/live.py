"""A running sweep's status for other processes: one small file in the state folder, replaced by rename."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TypedDict

from zo_sweeps.core.files import replace_text
from zo_sweeps.schedule.snapshot import Snapshot

FILE = "live.json"
EVERY_SECONDS = 1.0


class LiveRun(TypedDict):
    """A trial that runs."""

    trial_id: str
    label: str
    node: str
    attempt: int
    step: int
    steps: int
    seconds: float  # since it began


class Live(TypedDict):
    """A sweep's status as plain JSON."""

    time: float  # Unix seconds, when it was written
    running: list[LiveRun]
    waiting: dict[str, int]  # reason -> trials
    eta_seconds: float | None


class LiveFile:
    """A file in `state_dir` with the last snapshot, written at most once per second; write errors are ignored."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE
        self._written = 0.0
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)  # an earlier driver's

    def update(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        if now - self._written < EVERY_SECONDS:
            return
        self._written = now
        running: list[LiveRun] = [
            {
                "trial_id": run.trial.trial_id,
                "label": run.trial.label,
                "node": run.node,
                "attempt": run.attempt,
                "step": run.step,
                "steps": run.trial.steps,
                "seconds": round(now - run.since, 1),
            }
            for run in snapshot.running
        ]
        data: Live = {
            "time": time.time(),
            "running": running,
            "waiting": dict(snapshot.waiting),
            "eta_seconds": snapshot.eta_seconds,
        }
        with contextlib.suppress(OSError):
            replace_text(self._path, json.dumps(data))


def read_live(state_dir: Path) -> Live | None:
    """Return the last status that a driver of `state_dir` wrote; None if none. `driver_of` tells if it still runs."""
    try:
        status: Live = json.loads((state_dir / FILE).read_text())
    except (OSError, ValueError):
        return None
    return status
