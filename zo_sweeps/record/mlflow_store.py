"""The MLflow mirror: a browsable copy of the journals, sent in the background; it never blocks the sweep.

The journals are the truth. Whatever the server misses while it is unreachable is sent when it is back, or by `sync`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from zo_sweeps.core.trial import Trial
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.mlflow_client import SweepRuns, is_temporary, reason, silence
from zo_sweeps.record.server import ended
from zo_sweeps.record.sweep_book import SweepBook, SweepInfo

EVERY_SECONDS = 1.0  # a running trial is sent at most this often
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # between attempts to reach the server
MAX_TRIES = 4  # for a trial that the server refuses while it accepts others
_OPEN, _FINISH = "open", "finish"  # the sweep's own beginning and end, queued among the ids of trials


class MlflowMirror:
    """Sends the journals of a sweep to an MLflow server, in a thread.

    Args:
        uri: tracking server.
        experiment: name of the MLflow experiment; created if it is missing.
        sweep: the parent run.
        state_dir: the folder of the journals (see JournalStore).
        say: prints a line for the user. An unreachable server is reported once.
        patience: grace period, in seconds, before an unreachable server is reported (for one that was just started).

    No method raises because of the server; a full disk raises UserError, as it does for the journals. `close` ends the
    thread; anything unsent is sent the next time.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        sweep: SweepInfo,
        state_dir: str | os.PathLike[str],
        *,
        say: Callable[[str], None] = print,
        patience: float = 0.0,
    ) -> None:
        self._uri, self._folder, self._say = uri, Path(state_dir).resolve(), say
        self._book = SweepBook(self._folder, experiment, sweep)
        self._journals = JournalStore(self._folder)
        self._runs = SweepRuns(uri, experiment, sweep, self._book.began, self._folder)
        self._speak_after = time.monotonic() + patience
        self._trials: dict[str, Trial] = {}
        self._waiting: dict[str, float] = {_OPEN: 0.0}  # name -> earliest time to send it (monotonic seconds)
        self._busy = ""  # the name being sent
        self._tries: dict[str, int] = {}
        self._hurry = self._closing = self._finished = self._healthy = False
        self._reported = self._refused = False
        self._pause, self._paused_until = FIRST_WAIT, 0.0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._main, name="mlflow-mirror", daemon=True)
        self._thread.start()

    @property
    def page(self) -> str:
        """The address of the sweep's page in MLflow, for a browser; "" until the server has answered."""
        return self._runs.page

    def register(self, trial: Trial) -> None:
        """Register a trial, and queue the events that its journal already holds."""
        self._book.add(trial)
        self._trials[trial.trial_id] = trial
        if self._journals.path(trial.trial_id).exists():
            self._add(trial.trial_id)

    def notify(self, trial_id: str) -> None:
        """Queue a registered trial whose journal has grown. Cost: microseconds."""
        self._add(trial_id, EVERY_SECONDS)

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
        self._add(_FINISH)

    def drain(self, timeout: float) -> int:
        """Wait until everything is sent, at most `timeout` seconds; return the number of trials still queued."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            while (self._waiting or self._busy) and self._thread.is_alive():
                rest = deadline - time.monotonic()
                if rest <= 0:
                    break
                self._changed.wait(min(rest, 0.5))
            self._hurry = False
            return len((self._waiting.keys() | {self._busy}) - {"", _OPEN, _FINISH})

    def close(self, timeout: float = 5.0) -> None:
        """End the thread. If the server answers, runs that are still shown as running are closed as killed."""
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
        while name := self._next():
            self._try(name)
        if self.page and self._pause == FIRST_WAIT:  # otherwise the next start closes them
            with contextlib.suppress(Exception):
                self._runs.abandon(parent_too=not self._finished)
        os.close(lock)

    def _add(self, name: str, delay: float = 0.0) -> None:
        with self._changed:
            self._waiting.setdefault(name, time.monotonic() + delay)
            self._changed.notify_all()

    def _next(self) -> str:
        """Block until something may be sent, and return its name; "" when closing."""
        with self._changed:
            while not self._closing:
                now = time.monotonic()
                for name, at in self._waiting.items() if now >= self._paused_until else ():
                    in_turn = len(self._waiting) == 1 if name == _FINISH else name == _OPEN or self.page
                    if in_turn and (self._hurry or at <= now):
                        del self._waiting[name]
                        self._busy = name
                        return name
                times = [max(at, self._paused_until) for at in self._waiting.values()]
                self._changed.wait(min((at - now for at in times if at > now), default=60))
            return ""

    def _try(self, name: str) -> None:
        try:
            if name == _OPEN:
                self._runs.open()
            elif name == _FINISH:
                self._runs.finish(self._final)
                self._finished = True
            else:
                self._runs.send(self._trials[name])
        except Exception as error:  # whatever it is, the sweep goes on, and its journals are sent later
            self._failed(name, error)
        else:
            self._pause, self._healthy = FIRST_WAIT, True
        with self._changed:
            self._busy = ""
            self._changed.notify_all()

    def _failed(self, name: str, error: Exception) -> None:
        if name == _OPEN and (last := ended(self._folder, self._uri)):
            self._tell(f"the MLflow server of {self._folder} ended with: {last} ({self._folder}/mlflow/server.log)")
            self._closing = True
            return
        if is_temporary(error):
            if self._healthy:  # others got through since the last failure
                self._tries[name] = self._tries.get(name, 0) + 1
            self._healthy = False
            if self._tries.get(name, 0) < MAX_TRIES:
                self._paused_until = time.monotonic() + self._pause
                self._pause = min(2 * self._pause, LONGEST_WAIT)
                self._add(name)
                if time.monotonic() >= self._speak_after:
                    self._tell(f"MLflow at {self._uri} {silence(error)} ({reason(error)})")
                return
        if name == _OPEN:
            self._tell(f"MLflow at {self._uri} refuses the sweep ({reason(error)})")
            self._closing = True
        elif not self._refused:
            self._refused = True
            what = "the tables" if name == _FINISH else f"trial {name}"
            self._say(f"MLflow does not take {what} ({reason(error)}); its journal is kept, the sweep goes on")

    def _tell(self, what: str) -> None:
        if not self._reported:
            self._reported = True
            kept = f"its results are kept in {self._folder}, and `python -m zo_sweeps sync` sends them"
            self._say(f"{what}; the sweep goes on, {kept} if this does not")


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
