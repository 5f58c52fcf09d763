"""The book of a sweep: its trials and its final table, kept with the journals so that everything can be sent later."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from zo_sweeps.core.errors import UserError, nothing_run, unknown
from zo_sweeps.core.events import AddedTrial, Event, FinishedSweep, OpenedSweep, only
from zo_sweeps.core.trial import Trial
from zo_sweeps.record.journal import Journal


@dataclass(frozen=True)
class SweepInfo:
    """One sweep: a parent run. The same `sweep_id` is the same run, also after a restart.

    Attributes:
        title: the run's display name.
        command: the command line as the user typed it.
        tags: further tags of the run.
        config_yaml: the sweep's own resolved configuration, kept as an artifact.
    """

    sweep_id: str
    grid: str
    title: str
    command: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    config_yaml: str = ""


@dataclass(frozen=True)
class BookContents:
    """The contents of a book.

    `began`: when the sweep was first run (Unix seconds). `final`: the end of its last run; None if that run did not
    finish.
    """

    experiment: str
    sweep: SweepInfo
    began: float
    trials: list[Trial]
    final: FinishedSweep | None


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
