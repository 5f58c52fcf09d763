"""A lease on the board's disk: what the head sent, and the events of its trial, whether the head has them or not.

    leases/ID/   lease.json     the head's answer: trial, journal so far, attempt, threads, files
                 events.jsonl   the events since, as `record.journal` writes them; number 0 is the first
                 lost           why the trial's process ended without an outcome, if it did
    retired/ID/  the same, of a lease that is over: its trial may be leased to this board again

A folder without a readable lease.json was cut off while it was made: the head is asked again, and its events stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zo_sweeps.core.document import CONTROL
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ClientLine, End, Event, read_event, write_event
from zo_sweeps.core.files import replacing
from zo_sweeps.core.light_client import decisive
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.record.journal import Journal, outcome, read_events
from zo_sweeps_agent.lease_contents import LeaseContents
from zo_sweeps_agent.protocol import Message

RETIRED = 16  # the newest, kept
FRUITLESS = 3  # starts in a row without a step after which the trial is given back: it may be what ends the board
POST_BYTES = 2**17  # of events in one message, as JSON: at 2 kB/s it takes as long as the head waits for a request


class Spool:
    """One lease.

    Args:
        folder: its folder.

    Attributes:
        lease: its id.
        acknowledged: how many of its events the head has. Not on disk: the head ignores events that it has already.
        trial, trial_id, label, attempt, threads, files, client: as the head sent them.

    Raises UserError if the folder is incomplete or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.lease, self.acknowledged = folder, folder.name, 0
        self._lost: str | None = None
        try:
            contents = LeaseContents.read(json.loads((folder / "lease.json").read_text()))
            self.trial, self.trial_id = contents.trial, contents.trial_id
            self.label = CONTROL.sub("?", str(self.trial.get("label", "")))  # it is printed
            self.attempt, self.threads, self.files = contents.attempt, contents.threads, contents.files
            self.client = contents.client
            self._base = [*map(read_event, contents.journal)]
        except (OSError, ValueError) as error:
            raise UserError(f"damaged lease ({type(error).__name__})", where=str(folder)) from None
        self._events, self._offset = read_events(folder / "events.jsonl")

    @classmethod
    def create(cls, root: Path, contents: LeaseContents) -> Spool:
        """Keep a lease that the head sent; go on from an older spool of its trial if that begins with its journal.

        Args:
            root: the folder of all leases of this head.
            contents: as the head sent them.
        """
        folder = root / "leases" / contents.lease
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "events.jsonl").exists() and (tail := _beyond(root, contents)):
            with Journal(folder / "events.jsonl") as journal:
                journal.extend(tail)
        with replacing(folder / "lease.json") as part, part.open("w") as file:
            json.dump(contents.to_json(), file)
            file.flush()
            os.fsync(file.fileno())
        return cls(folder)

    @property
    def journal(self) -> list[Event]:
        """The trial's whole journal: the head's part, then this lease's events."""
        return [*self._base, *self.events()]

    def events(self) -> list[Event]:
        """Return the events of this lease so far."""
        more, self._offset = read_events(self.folder / "events.jsonl", self._offset)
        self._events += more
        return self._events

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of this attempt; None while there is none."""
        why = self._lost
        if why is None:
            with contextlib.suppress(OSError):
                why = (self.folder / "lost").read_text()
        return outcome(self.events()) if why is None else Outcome(self.trial_id, TrialState.LOST, error=why)

    @property
    def waiting(self) -> int:
        """Events that the head lacks."""
        return len(self._events) - self.acknowledged

    def lose(self, why: str) -> None:
        """End the attempt as LOST; on a full disk, for as long as this process lives."""
        self._lost = why
        with contextlib.suppress(OSError):
            (self.folder / "lost").write_text(why)

    def cancel(self) -> None:
        """End the attempt as CANCELLED, without a process."""
        ended = Outcome(self.trial_id, TrialState.CANCELLED, error="stopped on request")
        with Journal(self.folder / "events.jsonl") as journal:
            journal.append(End(outcome=ended))

    @property
    def fruitless(self) -> bool:
        """Whether the last `FRUITLESS` attempts of this lease ended before they emitted anything but their start."""
        last = self.events()[-FRUITLESS:]
        kinds = [event.line["type"] if isinstance(event, ClientLine) else event.kind for event in last]
        return kinds == ["start"] * FRUITLESS

    def post(self) -> Message | None:
        """Return the next message to the head: events that it lacks, and the outcome with the last of them.

        None: it has everything so far.
        """
        ended = self.outcome  # before the events: none follows it
        rest = self.events()[self.acknowledged :]
        if rest:  # what the head has must be here after a power cut, too: later events continue it
            with (self.folder / "events.jsonl").open("rb") as file:
                os.fsync(file.fileno())
        part: list[dict[str, Any]] = []
        size = 0
        for event in map(write_event, rest):
            size += len(json.dumps(event))
            if part and size > POST_BYTES:
                break
            part.append(event)
        final = ended is not None and len(part) == len(rest)
        if not part and not final:
            return None
        return Message(self.acknowledged, tuple(part), ended.to_json() if ended and final else None)

    def retire(self) -> None:
        """Set the spool of a lease that is over aside."""
        aside = self.folder.parents[1] / "retired"
        aside.mkdir(exist_ok=True)
        shutil.rmtree(aside / self.lease, ignore_errors=True)
        self.folder.rename(aside / self.lease)
        (aside / self.lease).touch()
        for old in sorted(aside.iterdir(), key=lambda path: path.stat().st_mtime_ns)[:-RETIRED]:
            shutil.rmtree(old)

    def forget(self) -> None:
        """Delete the spool."""
        shutil.rmtree(self.folder)


def spools(root: Path) -> list[Spool]:
    """Return the complete spools of the leases below `root`; incomplete ones wait for the head."""
    found = []
    for folder in sorted((root / "leases").glob("*/")):
        try:
            found.append(Spool(folder))
        except UserError:
            continue
    return found


def _beyond(root: Path, contents: LeaseContents) -> list[Event]:
    """Return the events that this board has of the trial beyond the journal of its new lease, of the longest spool.

    Only of a spool that begins with this journal: else another machine has gone on from an earlier event. The end of an
    attempt that was stopped is left out. A run of the light client that scores a split has an end of its own,
    and so has a client.
    """
    if contents.client or contents.trial.get("client"):
        return []
    journal = [text for text, _ in _marks([*map(read_event, contents.journal)])]
    best: list[Event] = []
    for folder in [*(root / "retired").glob("*/"), *(root / "leases").glob("*/")]:
        try:
            own = Spool(folder)
        except UserError:
            continue
        events = own.journal if own.trial_id == contents.trial_id else []
        marks = _marks(events)[: len(journal)]
        if [text for text, _ in marks] == journal:
            best = max(best, events[marks[-1][1] if marks else 0 :], key=len)
    ended = outcome(best)
    return best[:-1] if ended is not None and ended.state is TrialState.CANCELLED else best


def _marks(events: Sequence[Event]) -> list[tuple[str, int]]:
    """Return (text, events up to it) of each event that a continued journal must have, too.

    Of the light client's log that is what decides how it goes on, and what the head sends of it.
    """
    marks = []
    for number, event in enumerate(events, 1):
        kept = decisive(event.line) if isinstance(event, ClientLine) else write_event(event)
        if kept is not None:
            marks.append((json.dumps(kept, sort_keys=True), number))  # equal for NaN, which differs from itself
    return marks
