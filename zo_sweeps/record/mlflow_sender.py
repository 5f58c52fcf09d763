"""Threads that bring trials to an MLflow server: a queue, patience with a server that is away, no exceptions."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Event, Trial
from zo_sweeps.record import provenance
from zo_sweeps.record.mlflow_client import SweepRuns, is_temporary
from zo_sweeps.record.sweep_book import SweepInfo

THREADS = 4
EVERY_SECONDS = 1.0  # a running trial is sent at most this often
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # between attempts to reach the server
MAX_TRIES = 4  # for one trial that a server refuses while it takes others
_FINISH = ""  # stands for the sweep itself in the queue of trial ids


class Sender:
    """Sends journals of one sweep; see `mlflow_store.MlflowMirror` for the arguments.

    `problems`: why a trial cannot be sent at all, by trial_id.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        sweep: SweepInfo,
        began: float,
        state_dir: Path,
        say: Callable[[str], None],
        patience: float = 0.0,
    ) -> None:
        self._uri, self._experiment, self._sweep, self._began = uri, experiment, sweep, began
        self._state_dir, self._say = state_dir, say
        self._speak_after = time.monotonic() + patience
        self._trials: dict[str, Trial] = {}
        self._waiting: dict[str, float] = {}  # trial_id -> when it may be sent next (monotonic seconds)
        self._busy: set[str] = set()
        self._sent_at: dict[str, float] = {}
        self._tries: dict[str, int] = {}
        self._final: Event | None = None
        self._finished = self._closing = self._hurry = self._said = False
        self._pause, self._paused_until, self._successes = FIRST_WAIT, 0.0, 0
        self._changed = threading.Condition()
        self._runs: SweepRuns | None = None
        self.problems: dict[str, str] = {}
        self._thread = threading.Thread(target=self._main, name="mlflow-mirror", daemon=True)
        self._thread.start()

    @property
    def page(self) -> str:
        """Address of the sweep's page; "" until the server has answered."""
        return self._runs.page if self._runs else ""

    def notify(self, trial: Trial) -> None:
        """The journal of this trial has grown."""
        with self._changed:
            self._trials[trial.trial_id] = trial
            at = max(time.monotonic(), self._sent_at.get(trial.trial_id, 0.0) + EVERY_SECONDS)
            self._waiting.setdefault(trial.trial_id, at)
            self._changed.notify()

    def finish(self, final: Event) -> None:
        """End the parent run with a `finish` event of the sweep's book, after all trials that wait."""
        with self._changed:
            self._final = final
            self._waiting[_FINISH] = 0.0
            self._changed.notify()

    def drain(self, timeout: float) -> int:
        """Wait until everything is sent, at most `timeout` seconds. Returns how many trials still wait."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            while self._waiting or self._busy:
                rest = deadline - time.monotonic()
                if rest <= 0 or not self._thread.is_alive():
                    break
                self._changed.wait(min(rest, 0.5))
            self._hurry = False
            return len((self._waiting.keys() | self._busy) - {_FINISH})

    def close(self, timeout: float = 5.0) -> None:
        """End the threads. Runs that are still shown as running are closed as killed, if the server answers."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)

    # -- the threads ---------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        """Opens the sweep's runs, then works with the other threads until `close`."""
        with _only_one(self._state_dir, lambda: self._closing) as alone:
            if not alone or not self._open():
                return
            others = [
                threading.Thread(target=self._work, name="mlflow-mirror", daemon=True) for _ in range(THREADS - 1)
            ]
            for thread in others:
                thread.start()
            self._work()
            for thread in others:
                thread.join()
            if self._runs is not None and self._pause == FIRST_WAIT:
                with contextlib.suppress(Exception):  # the next start closes them
                    self._runs.abandon(parent_too=not self._finished)

    def _open(self) -> bool:
        while not self._closing:
            try:
                origin = provenance.collect()
                runs = SweepRuns(self._uri, self._experiment, self._sweep, self._began, self._state_dir, origin)
                runs.open()
                self._runs = runs
                self._pause = FIRST_WAIT
                return True
            except Exception as error:
                if not is_temporary(error):
                    self._tell(f"MLflow at {self._uri} refuses the sweep ({_line(error)})")
                    return False
                self._wait_for_server(error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, max(0.0, self._paused_until - time.monotonic()))
        return False

    def _work(self) -> None:
        while (trial_id := self._next()) is not None:
            try:
                self._send(trial_id)
            except Exception as error:
                self._failed(trial_id, error)
            else:
                with self._changed:
                    self._pause, self._paused_until = FIRST_WAIT, 0.0
                    self._successes += 1
                    self._tries.pop(trial_id, None)
            with self._changed:
                self._sent_at[trial_id] = time.monotonic()
                self._busy.discard(trial_id)
                self._changed.notify_all()

    def _next(self) -> str | None:
        """Blocks until a trial may be sent; None when closing. The sweep's own end waits for every trial."""
        with self._changed:
            while not self._closing:
                now = time.monotonic()
                if now >= self._paused_until:
                    for trial_id, at in self._waiting.items():
                        last = trial_id != _FINISH or (len(self._waiting) == 1 and not self._busy)
                        if trial_id not in self._busy and last and (self._hurry or at <= now):
                            del self._waiting[trial_id]
                            self._busy.add(trial_id)
                            return trial_id
                times = (max(at, self._paused_until) for at in self._waiting.values())
                wake = min((at for at in times if at > now), default=now + 60)  # the others wait for a thread's end
                self._changed.wait(wake - now)
            return None

    def _send(self, trial_id: str) -> None:
        assert self._runs is not None
        if trial_id == _FINISH:
            final = self._final
            assert final is not None
            self._runs.finish(final["files"], final["metrics"], final["status"], final["time"])
            self._finished = True
            return
        trial = self._trials[trial_id]
        try:
            self._runs.send(trial)
        except Exception as error:
            if is_temporary(error) or isinstance(error, UserError):
                raise
            self._runs.forget(trial)  # its run may have been deleted: look again, once
            self._runs.send(trial)

    def _failed(self, trial_id: str, error: Exception) -> None:
        if is_temporary(error):
            with self._changed:
                healthy = self._successes > 0  # others got through since the last failure
                self._successes = 0
                self._tries[trial_id] = self._tries.get(trial_id, 0) + healthy
                again = self._tries[trial_id] < MAX_TRIES
                if again:
                    self._waiting.setdefault(trial_id, 0.0)
            if again:
                self._wait_for_server(error)
                return
        with self._changed:
            self.problems[trial_id] = _line(error)
        if len(self.problems) == 1:
            what = f"trial {trial_id}" if trial_id else "the sweep's table"
            self._say(f"MLflow does not take {what} ({_line(error)}); its journal is kept, the sweep goes on")

    def _wait_for_server(self, error: Exception) -> None:
        with self._changed:
            now = time.monotonic()
            if now >= self._paused_until:  # the threads fail together: that is one failure
                self._paused_until = now + self._pause
                self._pause = min(2 * self._pause, LONGEST_WAIT)
        if now >= self._speak_after:
            self._tell(f"MLflow at {self._uri} does not answer ({_line(error)})")

    def _tell(self, what: str) -> None:
        if not self._said:
            self._said = True
            self._say(f"{what}; the sweep goes on, its results are kept in {self._state_dir} and are sent later")


@contextlib.contextmanager
def _only_one(state_dir: Path, give_up: Callable[[], bool]) -> Iterator[bool]:
    """One mirror at a time for a state directory (its cursors have one writer); False if `give_up` said so first."""
    path = state_dir / "mlflow" / "mirror.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while not give_up():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.2)
                continue
            yield True
            return
        yield False
    finally:
        os.close(lock)


def _line(error: Exception) -> str:
    text = str(error)
    for reason in ("Connection refused", "timed out", "Name or service not known"):  # deep inside a chain of causes
        if reason in text:
            return reason.lower()
    return text.splitlines()[0][:200] if text else type(error).__name__
