"""The journal: one trial's events on local disk, append-only, written before any other room sees them.

A line is one event as JSON, and its last key `crc` is a checksum (CRC-32, 8 hex digits) of the line before that key,
continued from the checksum of the line above: a changed line, and missing lines between two others, are noticed. The
`end` event marks a whole journal: without it, lines are missing if the ledger says that the trial has a result
(`JournalStore.read`). Lines without a checksum, of older journals, are read as they are.
"""

from __future__ import annotations

import json
import os
import re
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path

from zo_sweeps.core.document import MalformedError
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import (
    End,
    Event,
    Rung,
    ScoredDev,
    ScoredTest,
    SquaredGradients,
    Start,
    Steps,
    only,
    read_event,
    write_event,
)
from zo_sweeps.core.files import line_number, parse_object, read_lines, unpacked
from zo_sweeps.core.trial import Outcome

DURABLE = (Start, ScoredDev, Rung, ScoredTest, End)  # fsynced: on the disk, not only in the kernel's cache
_OPEN_FILES = 64
_TAIL = 1 << 16
_CHECKSUM = re.compile(rb',"crc":"([0-9a-f]{8})"\}')  # the end of a line
_CHECKSUM_BYTES = 18
_RERUN = "restore it from a copy, or run the sweep's command with --rerun "


class Journal(AbstractContextManager["Journal"]):
    """Append-only JSON lines: the events of one trial, in order.

    One `append` is one write; events of a class in `DURABLE` are also fsynced, with everything before them. A torn last
    line, without its newline (the writer was killed, or the disk was full), is never read, and is truncated at the next
    append. One process writes a journal at a time; any number may read it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd = -1
        self._checksum = 0  # of the last line

    def append(self, event: Event) -> None:
        """Write one event; see `extend`."""
        self.extend([event])

    def extend(self, events: Iterable[Event]) -> None:
        """Append the events in one write. Raises UserError if that fails; then none of them is in the journal."""
        batch = list(events)
        if not batch:
            return
        # Floats are written in their shortest round-trip form, NaN and infinity by name: each is read back exactly.
        texts = [json.dumps(write_event(event), separators=(",", ":"), ensure_ascii=False) for event in batch]
        try:
            if self._fd < 0:
                self._open()
            data, checksum = bytearray(), self._checksum
            for text in texts:
                body = text[:-1].encode("utf-8", "surrogatepass")
                checksum = zlib.crc32(body, checksum)
                data += body + b',"crc":"%08x"}\n' % checksum
            self._write(data)
            self._checksum = checksum
            if any(isinstance(event, DURABLE) for event in batch):
                os.fsync(self._fd)
        except OSError as error:
            raise UserError(
                f"cannot write the journal: {error.strerror}",
                where=str(self.path),
                fix="earlier events are intact; free disk space or grant write access, then run the same command again",
            ) from error

    def events(self) -> list[Event]:
        """Return all complete events; [] without a journal. Raises UserError naming file and line if it is damaged."""
        return read_events(self.path)[0]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = _complete_size(fd)
            os.ftruncate(fd, size)
            self._checksum = _checksum_before(fd, size) or 0
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def _write(self, data: bytearray) -> None:
        size = os.fstat(self._fd).st_size
        rest = memoryview(data)
        try:
            while rest:  # a full disk may take a part before it reports an error
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            try:
                os.ftruncate(self._fd, size)
            finally:
                self.close()  # if even that failed, the next opening cuts the torn line
            raise


def read_events(path: str | os.PathLike[str], offset: int = 0) -> tuple[list[Event], int]:
    """Return the complete events from byte `offset` (the start of a line) on, and the offset after the last of them.

    Raises UserError naming file and line if a complete line is not an event or does not match its checksum.
    """
    events: list[Event] = []
    lines = read_lines(path, offset)
    before: int | None = None  # the checksum of the line above; None if it has none
    if lines and offset:
        with open(path, "rb") as file:
            before = _checksum_before(file.fileno(), offset)
    for line, end in lines:
        value = parse_object(line)
        if value is None or "type" not in value:
            raise _damaged("unreadable line", path, end)
        found = _CHECKSUM.fullmatch(line[-_CHECKSUM_BYTES:])
        if found is None and before is not None:
            raise _damaged("line without a checksum", path, end)
        if found is not None:
            before = zlib.crc32(line[:-_CHECKSUM_BYTES], before or 0)
            if before != int(value.pop("crc"), 16):
                raise _damaged("changed line, or missing lines above it,", path, end)
        try:
            events.append(read_event(value))
        except MalformedError as error:
            raise _damaged(str(error), path, end) from None
        offset = end
    return events, offset


def _damaged(what: str, path: str | os.PathLike[str], end: int) -> UserError:
    return UserError(f"{what} in a journal", where=f"{path}:{line_number(path, end)}", fix=_RERUN + Path(path).stem)


def _checksum_before(fd: int, offset: int) -> int | None:
    """Return the checksum of the line that ends at byte `offset`; None if it has none."""
    found = _CHECKSUM.fullmatch(os.pread(fd, _CHECKSUM_BYTES, max(0, offset - 1 - _CHECKSUM_BYTES)))
    return int(found[1], 16) if found else None


def first_event(path: str | os.PathLike[str]) -> Event | None:
    """Return a journal's first event; None without a journal or a whole line. Raises UserError if it is damaged."""
    try:
        with open(path, "rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return None
    if not line.endswith(b"\n"):
        return None
    value = parse_object(line)
    return read_events(path)[0][0] if value is None or "time" not in value else read_event(value)  # the former raises


def born(path: str | os.PathLike[str]) -> float | None:
    """Return the time of a journal's first event, which tells a trial's journals apart; None without a journal."""
    event = first_event(path)
    return None if event is None else event.time


def last_step(events: Sequence[Event]) -> int:
    """Return the last step that a resumed attempt can skip: the end of the contiguous run of steps from 1."""
    return len(scalars(events)[1])


def scalars(events: Sequence[Event]) -> tuple[list[list[float]], list[float]]:
    """Return the scalar log: coefs ([steps][q]) and losses ([steps]), by ascending step from step 1; a gap ends it.

    A step that the journal holds twice counts once, as first written. First-order runs have no coefs: [] per step.
    """
    log = [(event.coefs or (), event.losses, i) for event, i in _steps(events)]
    return [list(coefs[i]) if i < len(coefs) else [] for coefs, _, i in log], [losses[i] for _, losses, i in log]


def _steps(events: Sequence[Event]) -> list[tuple[Steps, int]]:
    """Return (event, index in it) of each step of the scalar log."""
    by_step: dict[int, tuple[Steps, int]] = {}
    for event in only(Steps, events):
        for i in range(len(event.losses)):
            by_step.setdefault(event.first + i, (event, i))
    log: list[tuple[Steps, int]] = []
    while (step := by_step.get(len(log) + 1)) is not None:
        log.append(step)
    return log


def evals(events: Sequence[Event]) -> dict[tuple[str, int], ScoredDev | ScoredTest]:
    """Return the scores by (split, step)."""
    scores: dict[tuple[str, int], ScoredDev | ScoredTest] = {("dev", one.step): one for one in only(ScoredDev, events)}
    return scores | {("test", one.step): one for one in only(ScoredTest, events)}


def tested(events: Sequence[Event]) -> ScoredTest | None:
    """Return the test scores at the step that the outcome selects; None if there are none."""
    ended = outcome(events)
    return next((one for one in only(ScoredTest, events) if ended and one.step == ended.selected_step), None)


def outcome(events: Sequence[Event]) -> Outcome | None:
    """Return the trial's outcome; None if it has not ended, or if another attempt has started since."""
    for event in reversed(events):
        if isinstance(event, End):
            return event.outcome
        if isinstance(event, Start):
            return None
    return None


def places(events: Sequence[Event]) -> list[tuple[str, str, int]]:
    """Return (node, device profile, steps done before) of each attempt with a recorded node, in order.

    A runtime other than PyTorch stands after the profile: "cpu, executorch".
    """
    return [(event.node, _profile(event), event.resumed_from) for event in only(Start, events) if event.node]


def _profile(start: Start) -> str:
    runtime = start.device.get("runtime", "torch")
    return start.profile or "" if runtime in ("torch", start.profile) else f"{start.profile}, {runtime}"


class JournalStore:
    """The journals of all trials below `root`, one file each: journal/<first 2 hex digits>/<trial_id>.jsonl.

    Keeps the most recently used journals open. Thread-safe within one process.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.folder = Path(root) / "journal"
        self._open: dict[str, Journal] = {}
        self._lock = threading.Lock()

    def path(self, trial_id: str) -> Path:
        return self.folder / trial_id[:2] / f"{trial_id}.jsonl"

    def append(self, trial_id: str, events: Iterable[Event]) -> None:
        """Append events of a trial, in one write. Raises UserError if that fails."""
        with self._lock:
            journal = self._open.pop(trial_id, None) or Journal(self.path(trial_id))
            self._open[trial_id] = journal  # the most recently used is last
            if len(self._open) > _OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            journal.extend(events)

    def read(self, trial_id: str, *, ended: bool = False) -> list[Event]:
        """Return all events of a trial; [] if it never started.

        Args:
            ended: whether the trial has a result according to the ledger; its journal must then have the `end` event.

        Raises UserError naming the file if the journal is damaged.
        """
        path = self.path(trial_id)
        events = read_events(path)[0]
        if ended and outcome(events) is None:
            what = "missing end of the journal" if path.exists() else "no journal"
            raise UserError(f"{what} of a finished trial", where=str(path), fix=_RERUN + trial_id)
        return events

    def set_aside(self, trial_id: str) -> None:
        """Rename a trial's journal to a name that is not read, so that the next event starts a new one."""
        with self._lock:
            if trial_id in self._open:
                self._open.pop(trial_id).close()
            path = self.path(trial_id)
            if path.exists():
                names = (path.with_suffix(f".old{n}") for n in count(1))
                path.rename(next(name for name in names if not name.exists()))

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids of all trials with a journal, in ascending order."""
        return iter(sorted(path.stem for path in self.folder.glob("??/*.jsonl")))

    def close(self) -> None:
        with self._lock:
            for journal in self._open.values():
                journal.close()
            self._open.clear()


def _complete_size(fd: int) -> int:
    """Return the number of bytes up to and including the last newline."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _TAIL)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def trail(events: Sequence[Event]) -> dict[str, list[tuple[int, float, float]]]:
    """Return the curves: "train/loss", "dev/loss", "dev/metric" -> (step, seconds, value), by ascending step.

    A curve without points is []. A journal with gradient measurements adds "gradients/<mask>/<density>", from step 0.

    seconds: time of the steps so far, without evaluations and loading. A step's time is an equal share of its event's;
    a step that the journal holds twice counts once, as first written. Cost: one pass.
    """
    log = _steps(events)
    clock = [0.0, *accumulate(event.seconds / len(event.losses) for event, _ in log)]
    dev = sorted({event.step: event for event in only(ScoredDev, events) if event.step < len(clock)}.items())
    curves = {
        "train/loss": [(step, clock[step], event.losses[i]) for step, (event, i) in enumerate(log, 1)],
        "dev/loss": [(step, clock[step], event.loss) for step, event in dev],
        "dev/metric": [(step, clock[step], event.metric) for step, event in dev],
    }
    for step, measured in sorted(gradients(events).items()):
        for name, share in measured.covered.items() if step < len(clock) else ():
            curves.setdefault(f"gradients/{name}", []).append((step, clock[step], share))
    return curves


def gradients(events: Sequence[Event]) -> dict[int, SquaredGradients]:
    """Return the measurements of gradients by step."""
    return {event.step: event for event in only(SquaredGradients, events)}


@dataclass(frozen=True)
class RowPredictions:
    """The predictions of one trial; those on the same rows can be compared example by example."""

    rows: str  # digest of the test rows
    right: tuple[bool, ...]  # whether each prediction is right, in the order of the rows


def predictions(events: Sequence[Event]) -> RowPredictions | None:
    """Return a trial's predictions at its selected step.

    None if it has none: it did not succeed, predicts numbers, or was run before predictions were kept.
    """
    test = tested(events)
    if test is None or not test.examples:
        return None
    return RowPredictions(test.rows or "", unpacked(test.right or "", test.examples))
