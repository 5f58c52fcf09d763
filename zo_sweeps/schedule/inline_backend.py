"""The backend without processes: `poll` runs the submitted trial here. For debuggers, profilers and tests."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from zo_sweeps.core.trial import Event, Outcome, Sharing, Trial
from zo_sweeps.devices.probe import probe
from zo_sweeps.schedule.backend import (
    COLD,
    FLUSH_SECONDS,
    NO_SLOT,
    RUN_TRIAL,
    WARM,
    Attempt,
    Deliver,
    Finished,
    Progress,
    run_guarded,
)
from zo_sweeps.schedule.fused import run_together
from zo_sweeps.schedule.sharing import ALONE, Workers, of_weights

NODE = "inline"


class InlineBackend:
    """One slot in this process; a trial's followers run in processes of their own. See `Backend` for the methods.

    Args:
        target: the RunTrial, as "module:function".
        threads: torch's threads while a trial runs, here and in the followers: the same bits as in a Ray actor.
            0, without followers: as many as there are, and torch is not imported.
        workers: processes that share a trial's steps.
    """

    grows = False

    def __init__(self, target: str = RUN_TRIAL, *, threads: int = 1, workers: Workers = ALONE) -> None:
        self._target, self._threads, self._workers = target, threads, workers
        self._waiting: list[Attempt] = []
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

    def places(self, trial: Trial) -> int:
        return int(not self._waiting)

    def submit(self, trial: Trial, journal: list[Event], attempt: int, beside: Sequence[Attempt] = ()) -> str:
        assert not self._waiting, "one process"
        self._waiting, self._warm_key = [Attempt(trial, journal, attempt), *beside], trial.warm_key
        return NODE

    def poll(self, timeout: float) -> None:
        if not self._waiting:
            return
        attempts = self._waiting
        alone = len(attempts) == 1
        sinks = [_Stream(each.trial.trial_id, each.number, self._deliver, flushes=alone) for each in attempts]
        stop = lambda: self._stopping or any(sink.broken for sink in sinks)
        with _torch_threads(self._threads):
            outcomes = [self._run(attempts[0], sinks[0], stop)] if alone else self._run_together(attempts, sinks, stop)
        self._waiting = []
        for sink in sinks:
            sink.close()
        for each, outcome in zip(attempts, outcomes, strict=True):
            self._deliver(Finished(each.trial.trial_id, each.number, outcome))

    def _run(self, attempt: Attempt, sink: _Stream, stop: Callable[[], bool]) -> Outcome:
        trial, journal = attempt.trial, attempt.journal
        with self._sharing(trial, journal) as sharing:
            return run_guarded(self._target, trial, sink, journal, attempt.number, stop, sharing=sharing)

    def _run_together(
        self, attempts: Sequence[Attempt], sinks: Sequence[_Stream], stop: Callable[[], bool]
    ) -> list[Outcome]:
        def flush() -> None:  # in this thread: the driver's files belong to it
            for sink in sinks:
                sink.flush_if_due()

        return run_together(self._target, list(zip(attempts, sinks, strict=True)), stop, flush)

    @contextmanager
    def _sharing(self, trial: Trial, journal: list[Event]) -> Iterator[Sharing | None]:
        """Start the trial's followers, and end them with it."""
        count = self._workers.of_trial(trial) - 1
        if not count:
            yield None
            return
        from zo_sweeps.schedule.process_peers import ProcessPeer

        with ExitStack() as stack:
            peers = []
            for _ in range(count):
                peers.append(ProcessPeer(self._target, trial, of_weights(journal), self._threads))
                stack.callback(peers[-1].close)
            yield Sharing(peers, [NODE] * count, self._workers.on_lost == "drop", self._workers.patience)

    def cancel_all(self) -> None:
        self._stopping = True

    def shutdown(self) -> None:
        self._waiting = []
        if not self._frozen:
            gc.unfreeze()  # trials exempt all objects from collections: this process has some of its own

    def describe(self) -> str:
        return "this process, one at a time"


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    """Give torch this many threads until the block ends; 0: leave it alone."""
    if not count:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Stream:
    """A sink that delivers twice a second; when an event arrives, unless the attempt has another thread.

    An error of `deliver` (a full disk) is not the trial's fault: it stops the trial and is raised by `close`.
    """

    def __init__(self, trial_id: str, attempt: int, deliver: Deliver, *, flushes: bool) -> None:
        self._trial_id, self._attempt, self._deliver, self._flushes = trial_id, attempt, deliver, flushes
        self._events: list[Event] = []
        self._last = time.monotonic()
        self._error: Exception | None = None

    @property
    def broken(self) -> bool:
        return self._error is not None

    def emit(self, event: Event) -> None:
        if event["type"] == "start":
            event = {**event, "node": NODE, "profile": probe()["profile"]}
        self._events.append(event)
        if self._flushes:
            self.flush_if_due()

    def flush_if_due(self) -> None:
        """Deliver what has arrived, twice a second."""
        if time.monotonic() - self._last >= FLUSH_SECONDS and not self.broken:
            try:
                self._flush()
            except Exception as error:  # kept for `close`, which raises it outside the trial
                self._error = error

    def close(self) -> None:
        if self._error:
            raise self._error
        self._flush()

    def _flush(self) -> None:
        events, self._events = self._events, []
        self._last = time.monotonic()
        if events:
            self._deliver(Progress(self._trial_id, self._attempt, events))
