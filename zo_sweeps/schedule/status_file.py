"""A running sweep's status for other processes: one small file in the state folder, replaced by rename."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from zo_sweeps.core.document import key, to_text
from zo_sweeps.core.files import replace_text
from zo_sweeps.schedule.snapshot import Snapshot

FILE = "live.json"
EVERY_SECONDS = 1.0


@dataclass(frozen=True)
class LiveRun:
    """A trial that runs now."""

    trial_id: str = key("its id")
    label: str = key("its printed name")
    node: str = key("where it runs")
    attempt: int = key("1 for the first")
    step: int = key("steps done")
    steps: int = key("steps in all; 0: it has none")
    seconds: float = key("since it began")


class Live(TypedDict):
    """A sweep's status as plain JSON."""

    time: float  # Unix seconds, when it was written
    running: list[LiveRun]
    waiting: dict[str, int]  # reason -> trials
    eta_seconds: float | None
    tokens_per_second: float | None  # forwarded, mean since the driver began


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
            LiveRun(
                trial_id=run.trial.trial_id,
                label=run.trial.label or run.trial.trial_id,
                node=run.node,
                attempt=run.attempt,
                step=run.step,
                steps=run.trial.steps,
                seconds=round(now - run.since, 1),
            )
            for run in snapshot.running
        ]
        data: Live = {
            "time": time.time(),
            "running": running,
            "waiting": dict(snapshot.waiting),
            "eta_seconds": snapshot.eta_seconds,
            "tokens_per_second": snapshot.tokens_this_run / snapshot.seconds if snapshot.seconds else None,
        }
        with contextlib.suppress(OSError):
            replace_text(self._path, to_text(data))


def read_live(state_dir: Path) -> Live | None:
    """Return the last status that a driver of `state_dir` wrote; None if none. `driver_of` tells if it still runs."""
    try:
        status = json.loads((state_dir / FILE).read_text())
        status["running"] = [LiveRun(**run) for run in status["running"]]
    except (OSError, ValueError, KeyError, TypeError):  # TypeError: of a driver of another version
        return None
    live: Live = status
    return live
