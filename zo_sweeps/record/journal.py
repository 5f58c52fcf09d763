"""The journal: one trial's events on local disk, append-only, written before anything else hears of them."""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.jsonl import line_number, read_objects
from zo_sweeps.core.trial import Event, Outcome

DURABLE = frozenset({"start", "eval", "test", "end"})  # flushed to the disk itself, not only to the kernel
_OPEN_FILES = 64
_TAIL = 1 << 16


class Journal:
    """Append-only JSON lines: the events of one trial, in order.

    One `append` is one write; events of a type in `DURABLE` are also fsynced, with everything before them. A last
    line without its newline (the writer was killed in the middle of it, or the disk was full) is cut off when the
    journal is next appended to, and never read. One process writes a journal at a time; any number may read it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd = -1

    def append(self, event: Event) -> None:
        """Write one event; see `extend`."""
        self.extend([event])

    def extend(self, events: Iterable[Event]) -> None:
        """Write the events with one write. Raises UserError if they cannot be written; then none of them is there."""
        batch = list(events)
        if not batch:
            return
        # Floats are spelt by their shortest round-trip form, NaN and infinity as such: every one comes back exactly.
        lines = "".join(json.dumps(event, separators=(",", ":"), ensure_ascii=False) + "\n" for event in batch)
        try:
            if self._fd < 0:
                self._open()
            self._write(lines.encode("utf-8", "surrogatepass"))
            if any(event["type"] in DURABLE for event in batch):
                os.fsync(self._fd)
        except OSError as error:
            raise UserError(
                f"cannot write the journal: {error.strerror}",
                where=str(self.path),
                fix="what was written before is intact; make room or give access, then run the same command again",
            ) from error

    def events(self) -> list[Event]:
        """All complete events; [] if there is no journal yet. Raises UserError naming file and line on damage."""
        return read_events(self.path)[0]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.ftruncate(fd, _complete_size(fd))
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def _write(self, data: bytes) -> None:
        size = os.fstat(self._fd).st_size
        rest = memoryview(data)
        try:
            while rest:  # a full disk may take a part of it before it says so
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            try:
                os.ftruncate(self._fd, size)
            finally:
                self.close()  # if even that failed, the next opening cuts the torn line
            raise


def read_events(path: str | os.PathLike[str], offset: int = 0) -> tuple[list[Event], int]:
    """Complete events from byte `offset` (the start of a line) on, and the offset after the last of them.

    Raises UserError naming file and line if a complete line is not an event.
    """
    events: list[Event] = []
    for event, end in read_objects(path, offset):
        if event is None or "type" not in event:
            raise UserError(
                "unreadable line in a journal",
                where=f"{path}:{line_number(path, end)}",
                fix="mend the line, or delete the file to run the trial anew",
            )
        events.append(event)
        offset = end
    return events, offset


def born(path: str | os.PathLike[str]) -> float | None:
    """Return the time of a journal's first event, by which journals of one trial differ; None without one."""
    try:
        with open(path, "rb") as file:
            line = file.readline()
        return float(json.loads(line)["time"]) if line.endswith(b"\n") else None
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        return float(read_events(path)[0][0]["time"])  # raises, naming the line


def last_step(events: Sequence[Event]) -> int:
    """The last step that a resumed attempt need not do again: the end of the contiguous run of steps from 1."""
    return len(scalars(events)[1])


def scalars(events: Sequence[Event]) -> tuple[list[list[float]], list[float]]:
    """The scalar log: coefs ([steps][q]) and losses ([steps]), in step order from step 1; a gap ends it.

    A step that stands in the journal twice counts once, as first written. First-order runs have no coefs: [] a step.
    """
    by_step: dict[int, tuple[list[float], float]] = {}
    for event in events:
        if event["type"] == "steps":
            coefs = event.get("coefs") or []
            for i, loss in enumerate(event["losses"]):
                by_step.setdefault(event["first"] + i, (coefs[i] if i < len(coefs) else [], loss))
    log: list[tuple[list[float], float]] = []
    while (step := by_step.get(len(log) + 1)) is not None:
        log.append(step)
    return [coef for coef, _ in log], [loss for _, loss in log]


def evals(events: Sequence[Event]) -> dict[tuple[str, int], Event]:
    """The evaluations by (split, step): "dev" from `eval` events, "test" from the `test` event."""
    found: dict[tuple[str, int], Event] = {}
    for event in events:
        if event["type"] == "eval":
            found[event.get("split", "dev"), event["step"]] = event
        elif event["type"] == "test":
            found["test", event["step"]] = event
    return found


def outcome(events: Sequence[Event]) -> Outcome | None:
    """How the trial ended; None if it has not, or if a later attempt has started since."""
    for event in reversed(events):
        if event["type"] == "end":
            return Outcome.from_json(event["outcome"])
        if event["type"] == "start":
            return None
    return None


def places(events: Sequence[Event]) -> list[tuple[str, str, int]]:
    """(node, device profile, steps done before) of each attempt that says where it ran, in order."""
    starts = [event for event in events if event["type"] == "start" and "node" in event]
    return [(event["node"], event["profile"], event.get("resumed_from", 0)) for event in starts]


class JournalStore:
    """The journals of all trials below `root`, one file each: journal/<first 2 hex digits>/<trial_id>.jsonl.

    Keeps the most recently used few open. Safe to use from several threads of one process.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.folder = Path(root) / "journal"
        self._open: OrderedDict[str, Journal] = OrderedDict()
        self._lock = threading.Lock()

    def path(self, trial_id: str) -> Path:
        return self.folder / trial_id[:2] / f"{trial_id}.jsonl"

    def append(self, trial_id: str, events: Iterable[Event]) -> None:
        """Write events of a trial, in one write. Raises UserError if the disk does not take them."""
        with self._lock:
            journal = self._open.pop(trial_id, None) or Journal(self.path(trial_id))
            self._open[trial_id] = journal  # the most recently used stands last
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            journal.extend(events)

    def read(self, trial_id: str) -> list[Event]:
        """All events of a trial; [] if it never started."""
        return read_events(self.path(trial_id))[0]

    def set_aside(self, trial_id: str) -> None:
        """Start a trial's journal anew; the old file stays beside it, under a name that is not read."""
        with self._lock:
            if trial_id in self._open:
                self._open.pop(trial_id).close()
            path = self.path(trial_id)
            if path.exists():
                n = 1
                while (old := path.with_suffix(f".old{n}")).exists():
                    n += 1
                path.rename(old)

    def __iter__(self) -> Iterator[str]:
        """The ids of all trials that have a journal, in order."""
        return iter(sorted(path.stem for path in self.folder.glob("??/*.jsonl")))

    def close(self) -> None:
        with self._lock:
            for journal in self._open.values():
                journal.close()
            self._open.clear()


def _complete_size(fd: int) -> int:
    """Bytes up to and with the last newline."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _TAIL)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
