"""A running sweep's status for other processes: one small file in the state folder, replaced by rename."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from zo_sweeps.core.files import replace_text
from zo_sweeps.schedule.snapshot import Snapshot

FILE = "live.json"
EVERY_SECONDS = 1.0


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
        running = [
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
        data = {
            "time": time.time(),
            "running": running,
            "waiting": dict(snapshot.waiting),
            "eta_seconds": snapshot.eta_seconds,
        }
        with contextlib.suppress(OSError):
            replace_text(self._path, json.dumps(data))


def read_live(state_dir: Path) -> dict[str, Any]:
    """Return the last status that a driver of `state_dir` wrote; empty if none. `driver_of` tells if it still runs."""
    try:
        return dict(json.loads((state_dir / FILE).read_text()))
    except (OSError, ValueError):
        return {}
