"""The commands that were run in a state folder, so that `status` and `table` find the last one of a grid."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zo_sweeps.core.files import folder_at, replace_text


@dataclass(frozen=True)
class Command:
    """A user's command, kept with the results so that `status` and `table` can find it again."""

    overrides: tuple[str, ...]
    config_dirs: tuple[str, ...] = ()
    sweep_id: str = field(default="", compare=False)  # of the sweep that it has run; "" if not known

    def __str__(self) -> str:
        flags = [part for folder in self.config_dirs for part in ("--config-dir", folder)]
        return shlex.join(["python", "-m", "zo_sweeps", *self.overrides, *flags])


def latest(state_dir: Path, grid: str = "", like: Command | None = None) -> Command | None:
    """Return the command of the sweep that was started last in `state_dir`; None if there is none.

    Args:
        grid: only sweeps of this grid.
        like: only sweeps with the same overrides, in any order and wherever the state folder was, and the same folders.
    """
    sweeps = []
    for path in (state_dir / "sweeps").glob("*.json"):
        with contextlib.suppress(ValueError, OSError):
            sweep = json.loads(path.read_text())
            command = Command(tuple(sweep["overrides"]), tuple(sweep["config_dirs"]), path.stem)
            if (not grid or sweep["grid"] == grid) and (like is None or _meant(command) == _meant(like)):
                sweeps.append((sweep["started"], command))
    return max(sweeps, key=lambda item: item[0])[1] if sweeps else None


def _meant(command: Command) -> tuple[list[str], list[str]]:
    kept = [text for text in command.overrides if not text.startswith("state_dir=")]
    return sorted(kept), [str(Path(folder).resolve()) for folder in command.config_dirs]


def recall(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> Command | None:
    """Return the last command of the grid and state folder that `overrides` name, or the last that was this one.

    So `table +grid=X` shows the last run of X, at whatever scale it was run. None if there is no such command.
    """
    named = dict(text.split("=", 1) for text in overrides if text.startswith(("+grid=", "state_dir=")))
    like = Command(tuple(overrides), tuple(config_dirs)) if len(named) < len(overrides) else None
    folder = named.get("state_dir", "zo_runs")
    last = latest(folder_at(folder, "state_dir"), named.get("+grid", ""), like)
    if last is None:
        return None
    kept = [text for text in last.overrides if not text.startswith("state_dir=")]
    return Command((*kept, f"state_dir={folder}"), last.config_dirs, last.sweep_id)


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
