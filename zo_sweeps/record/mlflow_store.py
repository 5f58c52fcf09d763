"""The MLflow mirror: a browsable copy of the journals, sent in the background; it never blocks the sweep.

The journals are the truth. Whatever the store misses while it is unreachable, locked or full is sent when it is back,
by the next run of the sweep, or by `sync`.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from zo_sweeps.core.errors import UserError, nothing_run
from zo_sweeps.core.trial import Trial
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.mlflow_client import SweepRuns, is_temporary, reason, silence
from zo_sweeps.record.sweep_book import BookContents, SweepBook, SweepInfo, books

EVERY_SECONDS = 2.0  # between uploads, which take at most a tenth of a core
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # between attempts to reach the store
_OPEN, _FINISH = "open", "finish"  # the sweep's own beginning and end, queued among the ids of trials


class MlflowMirror:
    """Sends the journals of a sweep to an MLflow store, in a thread: on a timer, and when `drain` asks for it.

    Args:
        uri: tracking server; None for the state directory's own store, written without a server.
        experiment: name of the MLflow experiment; created if it is missing.
        sweep: the parent run.
        state_dir: the folder of the journals (see JournalStore).
        say: prints a line for the user. An unreachable store is reported once.
        patience: grace period, in seconds, before an unreachable store is reported.

    No method raises because of the store; a full disk raises UserError, as it does for the journals. `close` ends the
    thread; anything unsent is sent the next time.
    """

    def __init__(
        self,
        uri: str | None,
        experiment: str,
        sweep: SweepInfo,
        state_dir: str | os.PathLike[str],
        *,
        say: Callable[[str], None] = print,
        patience: float = 0.0,
    ) -> None:
        self._folder, self._say = Path(state_dir).resolve(), say
        self._book = SweepBook(self._folder, experiment, sweep)
        self._journals = JournalStore(self._folder)
        self._runs = SweepRuns(uri, experiment, sweep, self._book.began, self._folder)
        self._speak_after = time.monotonic() + patience
        self._trials: dict[str, Trial] = {}
        self._queue: Counter[str] = Counter({_OPEN: 1})  # name -> how often it was asked for
        self._failed: set[str] = set()  # of the queue, those that the store did not take for now
        self._answers = self._hurry = self._closing = self._finished = self._reported = self._refused = False
        self._pause = FIRST_WAIT
        self._changed = threading.Condition()
        # MLflow imports it. While it loads, it stands half made among Python's finders of packages, and torch, imported
        # beside it in another thread, fails at it: so it is loaded first.
        with contextlib.suppress(ImportError):
            importlib.import_module("importlib_metadata")
        self._thread = threading.Thread(target=self._main, name="mlflow-mirror", daemon=True)
        self._thread.start()

    def register(self, trial: Trial) -> None:
        """Register a trial, and queue the events that its journal already holds."""
        self._book.add(trial)
        self._trials[trial.trial_id] = trial
        if self._journals.path(trial.trial_id).exists():
            self.notify(trial.trial_id)

    def notify(self, trial_id: str) -> None:
        """Queue a registered trial whose journal has grown. Cost: microseconds."""
        with self._changed:
            self._queue[trial_id] += 1

    def finish(
        self,
        table_markdown: str,
        files: Mapping[str, str] | None = None,
        metrics: Mapping[str, float] | None = None,
        status: str = "FINISHED",
    ) -> None:
        """End the parent run once the queue is empty, with `table.md` and further files as artifacts, and its metrics.

        `status`: FINISHED, FAILED, or KILLED for a sweep that was interrupted.
        """
        self._final = self._book.finish({"table.md": table_markdown, **(files or {})}, metrics or {}, status)
        self.notify(_FINISH)

    def drain(self, timeout: float) -> int:
        """Wait until everything is sent, at most `timeout` seconds; return the number of trials still queued."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._queue and self._thread.is_alive()) or self._closing, timeout)
            self._hurry = False
            return len(self._queue.keys() - {_OPEN, _FINISH})

    def close(self, timeout: float = 5.0) -> None:
        """End the thread. If the store answers, runs that are still shown as running are closed as killed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        self._book.close()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        while (lock := lock_mirror(self._folder)) is None:  # an earlier sweep of this folder is still sending
            if self._closing:
                return
            time.sleep(0.2)
        while not self._closing:
            began = time.monotonic()
            self._answers = self._upload()
            pause = max(EVERY_SECONDS, 9 * (time.monotonic() - began)) if self._answers else self._pause
            with self._changed:
                self._changed.notify_all()
                self._changed.wait_for(self._is_in_a_hurry, pause)
        if self._answers and _OPEN not in self._queue:  # otherwise the next start closes them
            with contextlib.suppress(Exception):
                self._runs.abandon(parent_too=not self._finished)
        os.close(lock)

    def _is_in_a_hurry(self) -> bool:
        return self._closing or (self._answers and self._hurry and bool(self._queue))

    def _upload(self) -> bool:
        """Send what is queued until the store fails; return whether it did not. What failed before comes last."""
        with self._changed:
            names = sorted(self._queue, key=lambda name: (name != _OPEN, name in self._failed, name == _FINISH))
        for name in names:
            asked = self._queue[name]
            try:
                self._send(name)
            except Exception as error:  # whatever it is, the sweep goes on, and its journals are sent later
                self._failed.add(name)
                if is_temporary(error):
                    self._pause = min(2 * self._pause, LONGEST_WAIT)
                    if time.monotonic() >= self._speak_after:
                        self._tell(f"{silence(error)} ({reason(error)})")
                    return False
                self._refuse(name, error)
            else:
                self._failed.discard(name)
                self._pause = FIRST_WAIT
            with self._changed:
                if self._queue[name] == asked:  # it has not grown meanwhile
                    del self._queue[name]
            if self._closing:
                return True
        return True

    def _send(self, name: str) -> None:
        if name == _OPEN:
            self._runs.open()
        elif name == _FINISH:
            self._runs.finish(self._final)
            self._finished = True
        else:
            self._runs.send(self._trials[name])

    def _refuse(self, name: str, error: Exception) -> None:
        if name == _OPEN:
            self._tell(f"refuses the sweep ({reason(error)})")
            self._closing = True
        elif not self._refused:
            self._refused = True
            what = "the tables" if name == _FINISH else f"trial {name}"
            self._say(f"MLflow does not take {what} ({reason(error)}); its journal is kept, the sweep goes on")

    def _tell(self, what: str) -> None:
        if not self._reported:
            self._reported = True
            kept = f"its results are kept in {self._folder}, and `python -m zo_sweeps sync` sends them"
            self._say(f"MLflow at {self._runs.store} {what}; the sweep goes on, {kept} if this does not")


def lock_mirror(state_dir: Path) -> int | None:
    """Take the lock for sending from a state directory: a file descriptor, or None when another process holds it."""
    path = state_dir / "mlflow" / "mirror.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def sync(state_dir: str | os.PathLike[str], uri: str | None = None, say: Callable[[str], None] = print) -> int:
    """Send everything in a state folder's journals that a store lacks; return the number of trials sent.

    Idempotent: acknowledged journals are not resent, and a row that is sent twice is stored once.

    Args:
        state_dir: the state folder; all sweeps that were run there are sent.
        uri: the tracking server; None for the state folder's own store.
        say: prints a line for the user, one per sweep.

    Raises UserError if there is nothing to send, a sweep is sending from the folder, the store does not answer, or it
    refuses some of the rows; the rows that it accepted stay.
    """
    folder = Path(state_dir).resolve()
    sweeps = list(books(folder))
    if not sweeps:
        raise nothing_run(folder)
    lock = lock_mirror(folder)
    if lock is None:
        raise UserError("a sweep is running here and sends its own results", where=str(folder), fix="wait for its end")
    try:
        return sum(_send(book, folder, uri, say) for book in sweeps)
    finally:
        os.close(lock)


def _send(book: BookContents, folder: Path, uri: str | None, say: Callable[[str], None]) -> int:
    """Send one sweep. A trial that the store refuses, or whose journal is damaged, does not block the others."""
    runs = SweepRuns(uri, book.experiment, book.sweep, book.began, folder)
    sent, problems = 0, []
    try:
        runs.open()
        for trial in book.trials:
            try:
                sent += runs.send(trial)
            except Exception as error:  # MLflow, SQLAlchemy and the network each raise their own
                if is_temporary(error):
                    raise
                problems.append(f"trial {trial.trial_id}: {reason(error)}")
        if book.final:
            runs.finish(book.final)
        runs.abandon(parent_too=book.final is None)
    except Exception as error:  # as above; also of opening and finishing the sweep's run
        what = silence(error) if is_temporary(error) else "refuses the sweep"
        fix = "check tracking.uri; the same command goes on where this one stopped"
        raise UserError(f"MLflow at {runs.store} {what} ({reason(error)})", fix=fix) from None
    if problems:
        raise UserError(f"{len(problems)} of {len(book.trials)} trials were not sent; {problems[0]}", where=str(folder))
    say(f"{book.sweep.title}: {sent} trials sent to {runs.store}")
    return sent
