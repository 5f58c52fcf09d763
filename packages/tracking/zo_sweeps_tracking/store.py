"""The MLflow mirror: a browsable copy of the journals, sent in the background; it never blocks the sweep.

The journals are the truth. Whatever the store misses while it is unreachable, locked or full is sent when it is back,
by the next run of the sweep, or by `sync`. The store is a server's, or that of a state directory (state_dir/mlflow:
mlflow.db and artifacts/), which is written without a server, as one would lay it out.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from zo_sweeps.core.errors import UserError, nothing_run
from zo_sweeps.core.trial import Trial
from zo_sweeps.core.units import counted
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.sweep_book import BookContents, SweepInfo, books
from zo_sweeps.session.tracking import Mirror
from zo_sweeps_tracking.runs import SweepRuns
from zo_sweeps_tracking.server import is_temporary, reason, silence

EVERY_SECONDS = 2.0  # between uploads, which take at most a tenth of a core
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # between attempts to reach the store


class MlflowMirror(Mirror):
    """Sends the journals of a sweep to an MLflow store, in a thread: on a timer, and when `drain` asks for it.

    Args:
        uri: the server; None for the state directory's own store.
        experiment: name of the MLflow experiment; created if it is missing.
        say: prints a line for the user. An unreachable store is reported once.
        patience: grace period, in seconds, before that.

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
        super().__init__(experiment, sweep, self._folder)
        self.place = uri or str(self._folder / "mlflow")
        self._journals = JournalStore(self._folder)
        self._trials: dict[str, Trial] = {}
        self._runs = SweepRuns(uri, experiment, sweep, self._book.began, self._folder, self._trials)
        self._speak_after = time.monotonic() + patience
        self._queue: Counter[str] = Counter()  # trial_id -> how often it was asked for
        self._opened = self._finished = self._answers = self._hurry = self._closing = False
        self._reported = self._refused = False
        self._changed = threading.Condition()
        # MLflow imports it. While it loads, it stands half made among Python's finders of packages, and torch, imported
        # beside it in another thread, fails at it: so it is loaded first.
        with contextlib.suppress(ImportError):
            importlib.import_module("importlib_metadata")
        self._thread = threading.Thread(target=self._main, name="mlflow-mirror", daemon=True)
        self._thread.start()

    def register(self, trial: Trial) -> None:
        super().register(trial)
        self._trials[trial.trial_id] = trial
        if self._journals.path(trial.trial_id).exists():
            self.notify(trial.trial_id)

    def notify(self, trial_id: str) -> None:
        with self._changed:
            self._queue[trial_id] += 1

    def drain(self, timeout: float) -> int:
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._closing or not self._lacks_something() or not self._thread.is_alive(), timeout
            )
            self._hurry = False
            return len(self._queue)

    def close(self, timeout: float = 5.0) -> None:
        """End the thread. If the store answers, runs that are still shown as running are closed as killed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        super().close()

    def _lacks_something(self) -> bool:
        return not self._opened or bool(self._queue) or self._final is not None

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        while (lock := lock_mirror(self._folder)) is None:  # an earlier sweep of this folder is still sending
            if self._closing:
                return
            time.sleep(0.2)
        retry_after = FIRST_WAIT
        while not self._closing:
            began = time.monotonic()
            try:
                self._upload()
                self._answers, retry_after = True, FIRST_WAIT
                pause = max(EVERY_SECONDS, 9 * (time.monotonic() - began))
            except Exception as error:  # whatever it is, the sweep goes on, and its journals are sent later
                self._answers = False
                self._closing |= not is_temporary(error)
                pause, retry_after = retry_after, min(2 * retry_after, LONGEST_WAIT)
                if not self._reported and (self._closing or time.monotonic() >= self._speak_after):
                    self._reported = True
                    what = f"MLflow at {self._runs.store} {silence(error)} ({reason(error)})"
                    kept = f"its results are kept in {self._folder}, and `python -m zo_sweeps sync` sends them"
                    self._say(f"{what}; the sweep goes on, {kept} if this does not")
            with self._changed:
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._closing or (self._answers and self._hurry and self._lacks_something()), pause
                )
        if self._answers:
            with contextlib.suppress(Exception):  # whatever it is, the next start closes them
                self._runs.abandon(parent_too=not self._finished)
        os.close(lock)

    def _upload(self) -> None:
        """Send what is queued. Raises what the store fails with for now, and its refusal of the sweep."""
        if not self._opened:
            self._runs.open()
            self._opened = True
        with self._changed:
            queued, final = list(self._queue), self._final
        for trial_id in queued:
            if self._closing:
                return
            with self._changed:
                asked = self._queue[trial_id] = self._queue.pop(trial_id)  # the last in turn if it fails
            with _going_on(f"trial {trial_id}", self._refuse):
                self._runs.send(self._trials[trial_id])
            with self._changed:
                if self._queue[trial_id] == asked:  # it has not grown meanwhile
                    del self._queue[trial_id]
        if final:
            with _going_on("the tables", self._refuse):
                self._runs.finish(final)
                self._finished = True
            self._final = None

    def _refuse(self, what: str, why: str) -> None:
        if not self._refused:
            self._refused = True
            self._say(f"MLflow does not take {what} ({why}); its journal is kept, the sweep goes on")


@contextlib.contextmanager
def _going_on(what: str, refused: Callable[[str, str], None]) -> Iterator[None]:
    """Report that the store refuses `what`, or cannot be sent it, and why; raise an error that may not last."""
    try:
        yield
    except Exception as error:  # MLflow, SQLAlchemy and the network each raise their own
        if is_temporary(error):
            raise
        refused(what, reason(error))


def lock_mirror(state_dir: Path) -> int | None:
    """Take the lock for sending from a state directory: a file descriptor, or None when another process holds it."""
    path = state_dir / "mlflow" / "mirror.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        fix = "copy the folder, or give write access"
        raise UserError(f"cannot write: {error.strerror}", where=str(path), fix=fix) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def sync(state_dir: str | os.PathLike[str], uri: str | None = None, say: Callable[[str], None] = print) -> int:
    """Send everything in a state folder's journals that a store lacks, and `say` a line per sweep.

    Return the number of trials sent. Raises UserError if there is nothing to send, a sweep is sending from the folder,
    the store does not answer, or it refuses some of the rows; the rows that it accepted stay.
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
    trials = {trial.trial_id: trial for trial in book.trials}
    runs = SweepRuns(uri, book.experiment, book.sweep, book.began, folder, trials)
    sent, problems = 0, list[str]()
    try:
        runs.open()
        for trial in book.trials:
            with _going_on(f"trial {trial.trial_id}", lambda what, why: problems.append(f"{what}: {why}")):
                sent += runs.send(trial)
        if book.final:
            runs.finish(book.final)
        runs.abandon(parent_too=book.final is None)
    except Exception as error:  # as above; also of opening and finishing the sweep's run
        fix = "check tracking.uri; the same command goes on where this one stopped"
        raise UserError(f"MLflow at {runs.store} {silence(error)} ({reason(error)})", fix=fix) from None
    if problems:
        raise UserError(f"{len(problems)} of {len(book.trials)} trials were not sent; {problems[0]}", where=str(folder))
    say(f"{book.sweep.title}: {counted(sent, 'trial')} sent to {runs.store}")
    return sent
