"""The ledger: an append-only JSONL of trial states on the driver, the truth for resume.

One line per transition: time, trial_id, state, and if not empty attempt, node, error, sweep_id, outcome (without its
traceback, which is in the trial's journal), reset, blameless. Lines are flushed before the next trial starts, and
fsynced when they end an attempt. About 0.5 kB per finished trial.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import socket
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError, nothing_run
from zo_sweeps.core.files import line_number, read_objects
from zo_sweeps.core.trial import Outcome, TrialState

FILE, LOCK = "ledger.jsonl", "lock"


@dataclass
class Span:
    """An attempt's time, in Unix seconds.

    Args:
        end: None if its driver was killed, or it still runs.
        before: an end that is not known is not after this.
    """

    trial_id: str
    begin: float
    end: float | None = None
    before: float = math.inf


@dataclass
class Standing:
    """The trials' states and counts according to the ledger, by trial_id.

    Attributes:
        states: the last state. RUNNING means running now, or left behind by a killed driver (`Ledger` fixes that).
        attempts: attempts started, ever.
        failures, losses: attempts that ended FAILED and LOST since the last `reset`; handed-back ones do not count.
        outcomes: the outcome of the last attempt that ended.
        nodes: the host of the last attempt.
        sweeps: the sweep of the last attempt.
        held: why a pending trial is not started, if the sweep stopped its row.
        first, last: the times (Unix seconds) of the trial's first and last lines.
        spans: the attempts, those included whose end the ledger does not have; oldest first.
        open: those that have not ended.
    """

    states: dict[str, TrialState] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    losses: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    sweeps: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    open: dict[str, Span] = field(default_factory=dict)

    def state(self, trial_id: str) -> TrialState:
        """Return the trial's last state."""
        return self.states.get(trial_id, TrialState.PENDING)

    def has_result(self, trial_id: str) -> bool:
        """Return whether the trial has succeeded, diverged or run out of memory."""
        return self.states.get(trial_id, TrialState.PENDING).is_result

    def apply(self, entry: dict[str, Any]) -> None:
        """Apply one line of the ledger; call in file order."""
        trial_id, state = entry["trial_id"], TrialState(entry["state"])
        self.states[trial_id] = state
        if "time" in entry:
            self.last[trial_id] = entry["time"]
            self.first.setdefault(trial_id, entry["time"])
            self._note_attempt(trial_id, state, entry["time"])
        for name, of_trial in (("node", self.nodes), ("sweep_id", self.sweeps)):
            if entry.get(name):
                of_trial[trial_id] = entry[name]
        self.held.pop(trial_id, None)
        if state is TrialState.PENDING and entry.get("error"):
            self.held[trial_id] = entry["error"]
        if entry.get("reset"):
            for by_trial in (self.failures, self.losses, self.outcomes):
                by_trial.pop(trial_id, None)
        if "attempt" in entry:
            self.attempts[trial_id] = max(entry["attempt"], self.attempts.get(trial_id, 0))
        if state is TrialState.FAILED:
            self.failures[trial_id] = self.failures.get(trial_id, 0) + 1
        if state is TrialState.LOST and not entry.get("blameless"):
            self.losses[trial_id] = self.losses.get(trial_id, 0) + 1
        if "outcome" in entry:
            self.outcomes[trial_id] = Outcome.read(
                {**entry["outcome"], "trial_id": trial_id, "error": entry.get("error", "")}
            )

    def _note_attempt(self, trial_id: str, state: TrialState, at: float) -> None:
        killed = state in (TrialState.PENDING, TrialState.RUNNING)
        if span := self.open.pop(trial_id, None):
            span.end, span.before = None if killed else at, at
        if state is TrialState.RUNNING:
            self.open[trial_id] = Span(trial_id, at)
            self.spans.append(self.open[trial_id])


def read_standing(state_dir: Path) -> Standing:
    """Read the ledger of `state_dir` without taking the lock, for `status` and `table`. Empty if there is none."""
    standing = Standing()
    _apply(state_dir / FILE, standing)
    return standing


def has_run(state_dir: Path) -> bool:
    """Return whether any sweep was ever run in `state_dir`."""
    return (state_dir / FILE).exists()


def must_have_run(state_dir: Path) -> None:
    """Raise UserError if no sweep was ever run in `state_dir`."""
    if not has_run(state_dir):
        raise nothing_run(state_dir)


def driver_of(state_dir: Path) -> str:
    """Return the process that holds the lock of `state_dir` ("pid 123 on host"); "" if the lock is free."""
    try:
        with open(state_dir / LOCK) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or "another process"
    except FileNotFoundError:
        pass
    return ""


class Ledger(Standing, AbstractContextManager["Ledger"]):
    """The ledger, open for writing by one driver at a time, with a sweep's id in every line that it writes.

    Raises UserError when another driver holds the folder, or when it cannot be written; it is made if missing.
    """

    def __init__(self, state_dir: Path, sweep_id: str = "") -> None:
        super().__init__()
        self._path, self._sweep_id = state_dir / FILE, sweep_id
        with ExitStack() as on_error:
            try:
                state_dir.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(state_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
                on_error.callback(os.close, self._lock)
                if not _take(self._lock):
                    raise UserError(
                        f"another sweep ({driver_of(state_dir) or 'just ended'}) is using the state folder {state_dir}",
                        fix="wait for it, stop it with Ctrl-C, or use another folder",
                    )
                os.ftruncate(self._lock, 0)
                os.pwrite(self._lock, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
                on_error.callback(os.close, self._file)
                _sync_folder(state_dir)
                self._size = _apply(self._path, self)
                os.ftruncate(self._file, self._size)  # a line torn by a kill or a full disk
            except OSError as error:
                what = f"cannot write to the state folder {state_dir}: {error.strerror}"
                raise UserError(what, fix="use state_dir=FOLDER") from error
            on_error.pop_all()
        for trial_id, state in self.states.items():
            if state is TrialState.RUNNING:  # its driver is dead: the trial was interrupted, it did not fail
                self.states[trial_id] = TrialState.PENDING

    def write(
        self,
        trial_id: str,
        state: TrialState,
        *,
        attempt: int = 0,
        node: str = "",
        error: str = "",
        outcome: Outcome | None = None,
        reset: bool = False,
        blameless: bool = False,
    ) -> None:
        """Append a transition. It then survives a kill of this process, and a power cut too if it ends an attempt.

        Args:
            reset: the user asked for a rerun: retries are counted from here, and an earlier outcome is void.
            blameless: the trial was handed back: not counted in `losses`.

        Raises UserError when it cannot be written; the line is then not in the ledger.
        """
        entry: dict[str, Any] = {"time": round(time.time(), 3), "trial_id": trial_id, "state": state.value}
        optional = {"attempt": attempt, "node": node, "error": error, "sweep_id": self._sweep_id, "reset": reset}
        optional["blameless"] = blameless
        entry |= {key: value for key, value in optional.items() if value}
        if outcome is not None:
            dropped = ("trial_id", "error", "traceback")
            entry["outcome"] = {key: value for key, value in outcome.to_json().items() if key not in dropped and value}
        line = json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        try:
            written = os.pwrite(self._file, line, self._size)
            if written != len(line):
                raise OSError(28, "no space left on device")
            if state not in (TrialState.PENDING, TrialState.RUNNING):
                os.fsync(self._file)
        except OSError as error_:
            os.ftruncate(self._file, self._size)
            raise UserError(f"cannot write the ledger {self._path}: {error_.strerror}") from error_
        self._size += len(line)
        self.apply(entry)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)
        os.close(self._lock)

    def __exit__(self, *_: object) -> None:
        self.close()


def _apply(path: Path, standing: Standing) -> int:
    """Apply the complete lines of a ledger; return the offset of their end. A torn last line is left out."""
    lines, size = read_objects(path), 0
    for entry, end in lines:
        why = "a line that is not JSON" if entry is None else ""
        try:
            if entry is not None:
                standing.apply(entry)
                size = end
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"a line that this version cannot read ({type(error).__name__}: {error})"
        if why and (entry is not None or end != lines[-1][1]):  # a crash may leave garbage in the last line only
            fix = "delete that line; its trial is run again unless another line ends it"
            raise UserError(why, where=f"{path}:{line_number(path, end)}", fix=fix)
    return size


def _take(lock: int) -> bool:
    """Take the lock; return whether it was free. A reader in `driver_of` holds it for microseconds, so retry."""
    for _ in range(5):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
    return False


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
