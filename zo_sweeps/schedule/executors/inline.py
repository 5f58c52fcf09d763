"""Trials in the calling process, one at a time: `poll` runs the submitted one. For debuggers, profilers and tests."""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

from zo_sweeps.core.events import Event, Start
from zo_sweeps.core.trial import Sharing, Trial
from zo_sweeps.devices.probe import probe
from zo_sweeps.devices.speed import torch_threads
from zo_sweeps.methods.executor import Executor
from zo_sweeps.schedule.backend import (
    COLD,
    FLUSH_SECONDS,
    NO_SLOT,
    RUN_TRIAL,
    WARM,
    Deliver,
    Finished,
    Progress,
    run_guarded,
)
from zo_sweeps.schedule.placement import of_weights, processes

END_SECONDS = 5.0
STOPS = (signal.SIGINT, signal.SIGTERM)


class ProcessPeer:
    """A `zo_sweeps.engine.peers.Peer` in a process with so many torch threads, which ends with `close` or this one."""

    def __init__(self, target: str, trial: Trial, journal: Sequence[Event], threads: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        self._pipe, theirs = context.Pipe()
        module = target.partition(":")[0]
        arguments = (theirs, module, trial.to_json(), list(journal), threads)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        resource_tracker.ensure_running()  # which unblocks signals, where `start` would start it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # the process has them blocked, until it ignores them
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def ask(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # `answer` reports it
            self._pipe.send_bytes(message)

    def answer(self, timeout: float) -> bytes | None:
        from zo_sweeps.engine.peers import PeerLostError

        try:
            return self._pipe.recv_bytes() if self._pipe.poll(timeout) else None
        except (EOFError, OSError):
            self._process.join(END_SECONDS)
            raise PeerLostError(f"a peer's process ended (exit code {self._process.exitcode})") from None

    def close(self) -> None:
        self._pipe.close()
        self._process.kill()  # it has no state to save
        self._process.join()


def _serve(pipe: Connection, module: str, trial: dict[str, Any], journal: list[Event], threads: int) -> None:
    for number in STOPS:  # Ctrl-C reaches this process too, and the leader's step needs it
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    following = importlib.import_module(module).Following(Trial.from_json(trial), journal)
    try:
        pipe.send_bytes(following.ready)
        while True:
            pipe.send_bytes(following.answer(pipe.recv_bytes()))
    except (EOFError, BrokenPipeError):
        return  # the leader has ended


NODE = "inline"


class InlineBackend:
    """One slot in this process; a trial's followers run in processes of their own. See `Backend` for the methods.

    Args:
        target: the RunTrial, as "module:function".
        threads: torch's threads while a trial runs, here and in the followers: the same bits as in a Ray actor.
            0, without followers: as many as there are, and torch is not imported.
        options: the processes that share a trial's steps.
    """

    grows = False

    def __init__(self, target: str = RUN_TRIAL, *, threads: int = 1, options: Executor | None = None) -> None:
        self._target, self._threads, self._options = target, threads, options or Executor()
        self._waiting: tuple[Trial, list[Event], int] | None = None
        self._warm_key: str | None = None
        self._stopping = False
        self._frozen = True

    def start(self, deliver: Deliver, trials: int) -> None:
        self._deliver = deliver
        self._stopping = False
        self._frozen = gc.get_freeze_count() > 0

    def refusal(self, trial: Trial) -> str:
        return ""  # one process on one machine: the plan has checked that the trial fits

    def held_up(self) -> str:
        return ""

    def fit(self, trial: Trial) -> int:
        if self._waiting:
            return NO_SLOT
        return WARM if trial.warm_key == self._warm_key else COLD

    def submit(self, trial: Trial, journal: list[Event], attempt: int) -> str:
        assert not self._waiting, "one process"
        self._waiting, self._warm_key = (trial, journal, attempt), trial.warm_key
        return NODE

    def poll(self, timeout: float, left: int) -> None:
        if not self._waiting:
            return
        trial, journal, attempt = self._waiting
        sink = _Stream(trial.trial_id, attempt, self._deliver)
        stop = lambda: self._stopping or sink.error is not None
        with torch_threads(self._threads), self._sharing(trial, journal) as sharing:
            outcome = run_guarded(self._target, trial, sink, journal, attempt, stop, sharing=sharing)
        self._waiting = None
        sink.close()
        self._deliver(Finished(trial.trial_id, attempt, outcome))

    @contextmanager
    def _sharing(self, trial: Trial, journal: list[Event]) -> Iterator[Sharing | None]:
        """Start the trial's followers, and end them with it."""
        count = processes(self._options, trial) - 1
        if not count:
            yield None
            return

        with ExitStack() as stack:
            peers = []
            for _ in range(count):
                peers.append(ProcessPeer(self._target, trial, of_weights(journal), self._threads))
                stack.callback(peers[-1].close)
            options = self._options
            yield Sharing(peers, [NODE] * count, options.on_lost_worker == "drop", options.worker_patience)

    def cancel_all(self) -> None:
        self._stopping = True

    def shutdown(self) -> None:
        self._waiting = None
        if not self._frozen:
            gc.unfreeze()  # trials exempt all objects from collections: this process has some of its own

    def describe(self) -> str:
        return "this process, one at a time"


class _Stream:
    """A sink that delivers twice a second, when an event arrives.

    An error of `deliver` (a full disk) is not the trial's fault: it stops the trial and is raised by `close`.
    """

    def __init__(self, trial_id: str, attempt: int, deliver: Deliver) -> None:
        self._trial_id, self._attempt, self._deliver = trial_id, attempt, deliver
        self._events: list[Event] = []
        self._last = time.monotonic()
        self.error: Exception | None = None

    def emit(self, event: Event) -> None:
        self._events.append(event.at(NODE, probe()["profile"]) if isinstance(event, Start) else event)
        if time.monotonic() - self._last >= FLUSH_SECONDS and not self.error:
            try:
                self._flush()
            except Exception as error:  # kept for `close`, which raises it outside the trial
                self.error = error

    def close(self) -> None:
        if self.error:
            raise self.error
        self._flush()

    def _flush(self) -> None:
        events, self._events = self._events, []
        self._last = time.monotonic()
        if events:
            self._deliver(Progress(self._trial_id, self._attempt, events))


@dataclass(frozen=True)
class Inline(Executor):
    """This process, one trial at a time: for debugging, profiling and tests. It joins no cluster."""

    concurrent: ClassVar[bool] = False
    joins: ClassVar[bool] = False

    @property
    def threads(self) -> int:
        return self.workers * self.cpus_per_trial

    def build(self, state_dir: Path, address: str | None) -> InlineBackend:
        return InlineBackend(threads=self.cpus_per_trial, options=self)
