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

    @classmethod
    def of(cls, overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> Command:
        """Return a command as it is kept: without hooks, whose values may hold credentials."""
        return cls(tuple(text for text in overrides if not text.lstrip("+~").startswith("on.")), tuple(config_dirs))

    def __str__(self) -> str:
        return self._line()

    @property
    def table(self) -> str:
        """The command that prints its tables."""
        return self._line("table")

    def _line(self, *words: str) -> str:
        flags = [part for folder in self.config_dirs for part in ("--config-dir", folder)]
        return shlex.join(["python", "-m", "zo_sweeps", *words, *self.overrides, *flags])


@dataclass(frozen=True)
class Launched:
    """A sweep that was started in a state folder. `started`: when it was last (Unix seconds)."""

    grid: str
    command: Command
    started: float


def launched(state_dir: Path) -> list[Launched]:
    """Return the sweeps that were started in `state_dir`, the last one last."""
    sweeps = []
    for path in (state_dir / "sweeps").glob("*.json"):
        with contextlib.suppress(ValueError, OSError, KeyError, TypeError):
            sweep = json.loads(path.read_text())
            command = Command(tuple(sweep["overrides"]), tuple(sweep["config_dirs"]), path.stem)
            sweeps.append(Launched(str(sweep["grid"]), command, float(sweep["started"])))
    return sorted(sweeps, key=lambda sweep: (sweep.started, sweep.command.sweep_id))


def unreadable(state_dir: Path) -> list[Path]:
    """Return the records of commands in `state_dir` that cannot be read."""
    known = {sweep.command.sweep_id for sweep in launched(state_dir)}
    return sorted(path for path in (state_dir / "sweeps").glob("*.json") if path.stem not in known)


def recallable(state_dir: Path) -> list[Launched]:
    """Return the sweeps that their commands show: of those with equal commands the last."""
    by_command = {json.dumps(_meant(sweep.command)): sweep for sweep in launched(state_dir)}
    return list(by_command.values())


def latest(state_dir: Path, grid: str = "", like: Command | None = None) -> Command | None:
    """Return the command of the sweep that was started last in `state_dir`; None if there is none.

    Args:
        grid: only sweeps of this grid.
        like: only sweeps with the same overrides, in any order and wherever the state folder was, and the same folders.
    """
    found = [
        sweep.command
        for sweep in launched(state_dir)
        if (not grid or sweep.grid == grid) and (like is None or _meant(sweep.command) == _meant(like))
    ]
    return found[-1] if found else None


def _meant(command: Command) -> tuple[list[str], list[str]]:
    kept = [text for text in command.overrides if not text.startswith("state_dir=")]
    return sorted(kept), [str(Path(folder).resolve()) for folder in command.config_dirs]


def recall(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> Command | None:
    """Return the last command of the grid and state folder that `overrides` name, or the last that was this one.

    So `table +grid=X` shows the last run of X, at whatever scale it was run. None if there is no such command.
    """
    named = dict(text.split("=", 1) for text in overrides if text.startswith(("+grid=", "state_dir=")))
    like = Command.of(overrides, config_dirs) if len(named) < len(overrides) else None
    folder = named.get("state_dir", "zo_runs")
    last = latest(folder_at(folder, "state_dir"), named.get("+grid", ""), like)
    return None if last is None else in_folder(last, folder)


def in_folder(command: Command, state_dir: str) -> Command:
    """Return a command with this state folder, wherever it was when the command was run."""
    kept = [text for text in command.overrides if not text.startswith("state_dir=")]
    return Command((*kept, f"state_dir={state_dir}"), command.config_dirs, command.sweep_id)


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
