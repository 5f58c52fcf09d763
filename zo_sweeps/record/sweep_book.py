"""What is kept of a state folder's sweeps: the command of each, so that `status` and `table` find the last one of a
grid, and its book, the trials and the final table, with which everything can be sent later.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from zo_sweeps.core.errors import UserError, nothing_run, unknown
from zo_sweeps.core.events import AddedTrial, Event, FinishedSweep, OpenedSweep, only
from zo_sweeps.core.files import folder_at, replace_text
from zo_sweeps.core.trial import Trial
from zo_sweeps.record.journal import Journal


@dataclass(frozen=True)
class Command:
    """A user's command, kept with the results so that `status` and `table` can find it again."""

    overrides: tuple[str, ...]
    config_dirs: tuple[str, ...] = ()
    sweep_id: str = field(default="", compare=False)  # of the sweep that it has run; "" if not known

    @classmethod
    def of(cls, overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> Command:
        """Return a command as it is kept: without hooks, whose values may hold credentials."""
        parts = {text: re.split(r"[.=]", text.lstrip("+~"))[0] for text in overrides}
        return cls(tuple(text for text in overrides if parts[text] != "on"), tuple(config_dirs))

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
    return list({_meant(sweep.command): sweep for sweep in launched(state_dir)}.values())


def latest(state_dir: Path, grid: str = "", like: Command | None = None) -> Command | None:
    """Return the command of the sweep that was started last in `state_dir`; None if there is none.

    Only sweeps count that are of `grid` and mean the same as `like`, where these are given.
    """
    of_grid = [sweep.command for sweep in launched(state_dir) if not grid or sweep.grid == grid]
    return next((one for one in reversed(of_grid) if like is None or _meant(one) == _meant(like)), None)


def _meant(command: Command) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return the overrides, in any order and wherever the state folder was, and the folders."""
    kept = (text for text in command.overrides if not text.startswith("state_dir="))
    return tuple(sorted(kept)), tuple(Path(folder).resolve() for folder in command.config_dirs)


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


@dataclass(frozen=True)
class SweepInfo:
    """One sweep: a parent run. The same `sweep_id` is the same run, also after a restart."""

    sweep_id: str
    grid: str
    title: str  # the run's display name
    command: str = ""  # as the user typed it
    tags: Mapping[str, str] = field(default_factory=dict)  # further tags of the run
    config_yaml: str = ""  # the sweep's own resolved configuration, kept as an artifact


@dataclass(frozen=True)
class BookContents:
    """The contents of a book."""

    experiment: str
    sweep: SweepInfo
    began: float  # when the sweep was first run (Unix seconds)
    trials: list[Trial]
    final: FinishedSweep | None  # the end of its last run; None if that run did not finish


class SweepBook:
    """The file state_dir/books/<sweep_id>.jsonl, append-only. Written as a Journal, with its UserErrors.

    It is not in state_dir/mlflow, which may be deleted: `sync` makes it again from the books and the journals.
    """

    def __init__(self, state_dir: str | os.PathLike[str], experiment: str, sweep: SweepInfo) -> None:
        path, earlier_place = _folder(state_dir) / f"{sweep.sweep_id}.jsonl", _paths(state_dir).get(sweep.sweep_id)
        if earlier_place and earlier_place != path:
            path.parent.mkdir(exist_ok=True)
            earlier_place.replace(path)
        self._journal = Journal(path)
        earlier = _events(self._journal)
        self._known = {event.trial["trial_id"] for event in only(AddedTrial, earlier)}
        opened = OpenedSweep(experiment=experiment, sweep=asdict(sweep))
        self._journal.append(opened)
        self.began = [*earlier, opened][0].time

    def add(self, trial: Trial) -> None:
        """Record a trial; idempotent."""
        if trial.trial_id not in self._known:
            self._known.add(trial.trial_id)
            self._journal.append(AddedTrial(trial=trial.to_json()))

    def finish(self, files: Mapping[str, str], metrics: Mapping[str, float], status: str) -> FinishedSweep:
        """Record the end of the sweep; return the event."""
        end = FinishedSweep(files=files, metrics=metrics, status=status)
        self._journal.append(end)
        return end

    def close(self) -> None:
        self._journal.close()


def books(state_dir: str | os.PathLike[str]) -> Iterator[BookContents]:
    """Iterate over the books of the sweeps that were run in a state directory, by ascending sweep_id."""
    for sweep_id in sorted(_paths(state_dir)):
        if contents := book(state_dir, sweep_id):
            yield contents


def book(state_dir: str | os.PathLike[str], sweep_id: str) -> BookContents | None:
    """Return the book of a sweep; None if there is none. Raises UserError if it is damaged."""
    path = _paths(state_dir).get(sweep_id)
    events = _events(Journal(path)) if path else []
    headers = only(OpenedSweep, events)
    if not headers:
        return None
    trials = [Trial.from_json(event.trial) for event in only(AddedTrial, events)]
    final = events[-1] if isinstance(events[-1], FinishedSweep) else None
    last = headers[-1]
    return BookContents(last.experiment, SweepInfo(**last.sweep), headers[0].time, trials, final)


def find_trial(state_dir: str | os.PathLike[str], name: str) -> Trial:
    """Return a trial of any sweep that was run in a state directory, by its id or a prefix of it.

    Raises UserError, with near matches, unless exactly one trial matches.
    """
    known = {trial.trial_id: trial for book in books(state_dir) for trial in book.trials}
    matches = [trial for trial_id, trial in known.items() if trial_id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if not known:
        raise nothing_run(state_dir)
    if matches:
        raise UserError(f"{len(matches)} trials begin with {name!r}", where=str(state_dir), fix="give more of the id")
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.0)  # a sweep may have thousands
    raise unknown("trial", name, near, where=str(state_dir))


def _events(journal: Journal) -> list[Event]:
    try:
        return journal.events()
    except UserError as error:
        fix = "restore it from a copy, or delete it: the sweep's command writes it again"
        raise UserError(error.what.replace("journal", "sweep's book"), where=error.where, fix=fix) from None


def _folder(state_dir: str | os.PathLike[str]) -> Path:
    return Path(state_dir) / "books"


def _paths(state_dir: str | os.PathLike[str]) -> dict[str, Path]:
    """Return the books of a state directory by sweep_id; those of earlier versions are in the mirror's folder."""
    folders = (Path(state_dir) / "mlflow" / "sweeps", _folder(state_dir))
    return {path.stem: path for folder in folders for path in folder.glob("*.jsonl")}
