"""How much of each trial's journal a tracking server has acknowledged: one small file a trial, replaced by rename."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Cursor:
    """What the server has of one journal. All of it can be lost: replaying a journal adds nothing.

    Attributes:
        run_id: the MLflow run; "" before there is one.
        born: time of the journal's first event; another journal of the same trial (a forced rerun) has another.
        events, offset: acknowledged events, and the byte after the last of them.
        steps: the highest step among them.
    """

    run_id: str = ""
    born: float = 0.0
    events: int = 0
    offset: int = 0
    steps: int = 0

    def advanced(self, events: int, offset: int, steps: int) -> Cursor:
        return replace(self, events=self.events + events, offset=offset, steps=max(self.steps, steps))


class Cursors:
    """The cursors for one experiment on one server, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, trial_id: str) -> Cursor:
        """The stored cursor; an empty one if there is none or it cannot be read."""
        try:
            return Cursor(**json.loads(self._path(trial_id).read_text()))
        except (OSError, ValueError, TypeError):
            return Cursor()

    def save(self, trial_id: str, cursor: Cursor) -> None:
        path = self._path(trial_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(cursor)))
        os.replace(temporary, path)

    def forget(self, trial_id: str) -> None:
        self._path(trial_id).unlink(missing_ok=True)

    def _path(self, trial_id: str) -> Path:
        return self.folder / trial_id[:2] / f"{trial_id}.json"


def store_id(folder: Path) -> str:
    """A name for a state directory, made once: drivers that share a server do not close each other's runs."""
    path = folder / "store_id"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(os.urandom(6).hex())
    return path.read_text()
