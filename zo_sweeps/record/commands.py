"""The commands that were run in a state folder, so that `status` and `table` find the last one of a grid."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zo_sweeps.core.files import folder_at, replace_text


@dataclass(frozen=True)
class Command:
    """A user's command, kept with the results so that `status` and `table` can find it again."""

    overrides: tuple[str, ...]
    config_dirs: tuple[str, ...] = ()

    def __str__(self) -> str:
        flags = [part for folder in self.config_dirs for part in ("--config-dir", folder)]
        return shlex.join(["python", "-m", "zo_sweeps", *self.overrides, *flags])


def latest(state_dir: Path, grid: str = "") -> Command | None:
    """Return the command of the sweep (of `grid`) that was started last in `state_dir`; None if there is none."""
    sweeps = []
    for path in (state_dir / "sweeps").glob("*.json"):
        with contextlib.suppress(ValueError, OSError):
            sweep = json.loads(path.read_text())
            if not grid or sweep["grid"] == grid:
                sweeps.append((sweep["started"], sweep))
    if not sweeps:
        return None
    newest = max(sweeps, key=lambda item: item[0])[1]
    return Command(tuple(newest["overrides"]), tuple(newest["config_dirs"]))


def recall(overrides: Sequence[str]) -> Command | None:
    """Return the last command of the grid and state folder that `overrides` name; None if they name anything else.

    So `table +grid=X` shows the last run of X, at whatever scale it was run.
    """
    named = dict(text.split("=", 1) for text in overrides if text.startswith(("+grid=", "state_dir=")))
    if len(named) < len(overrides):
        return None
    folder = named.get("state_dir", "zo_runs")
    last = latest(folder_at(folder, "state_dir"), named.get("+grid", ""))
    if last is None:
        return None
    kept = [text for text in last.overrides if not text.startswith("state_dir=")]
    return Command((*kept, f"state_dir={folder}"), last.config_dirs)


def remember(state_dir: Path, sweep_id: str, grid: str, command: Command) -> None:
    """Store the command of a sweep, for `recall`."""
    folder = state_dir / "sweeps"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{sweep_id}.json"
    data = {
        "grid": grid,
        "overrides": command.overrides,
        "config_dirs": [str(Path(folder).resolve()) for folder in command.config_dirs],
        "started": time.time(),
    }
    replace_text(path, json.dumps(data))
