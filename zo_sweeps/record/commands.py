"""The commands that were run in a state folder, so that `status` and `table` find the last one of a grid."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zo_sweeps.core.files import replace_text


@dataclass(frozen=True)
class Command:
    """What the user asked for, kept beside the results so that `status` and `table` can find it again."""

    overrides: tuple[str, ...]
    config_dirs: tuple[str, ...] = ()

    def __str__(self) -> str:
        flags = [part for folder in self.config_dirs for part in ("--config-dir", folder)]
        return shlex.join(["python", "-m", "zo_sweeps", *self.overrides, *flags])


def latest(state_dir: Path, grid: str = "") -> Command | None:
    """The command of the sweep (of `grid`) that was started last in `state_dir`."""
    found = []
    for path in (state_dir / "sweeps").glob("*.json"):
        with contextlib.suppress(ValueError, OSError):
            data = json.loads(path.read_text())
            if not grid or data["grid"] == grid:
                found.append((data["started"], data))
    if not found:
        return None
    data = max(found, key=lambda item: item[0])[1]
    return Command(tuple(data["overrides"]), tuple(data["config_dirs"]))


def recall(overrides: Sequence[str]) -> Command | None:
    """The last command of the grid, and in the state folder, that `overrides` name, when they name nothing else.

    So that `table +grid=X` shows what was run last, however small it was tried.
    """
    named = dict(text.split("=", 1) for text in overrides if text.startswith(("+grid=", "state_dir=")))
    if len(named) < len(overrides):
        return None
    folder = named.get("state_dir", "zo_runs")
    found = latest(Path(folder).expanduser(), named.get("+grid", ""))
    if found is None:
        return None
    kept = [text for text in found.overrides if not text.startswith("state_dir=")]
    return Command((*kept, f"state_dir={folder}"), found.config_dirs)


def remember(state_dir: Path, sweep_id: str, grid: str, command: Command) -> None:
    """Stores the command of a sweep, for `recall`."""
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
