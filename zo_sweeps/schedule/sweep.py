"""The loop of a sweep: pending -> running -> terminal, with bounded retries, resume and a clean stop.

The driver owns the truth. Trials stream events; the driver appends them to the trial's journal, then writes the
ledger, then starts the next trial. A driver killed at any moment loses at most the events still in their processes; the
resumed attempt recomputes them from the last scalars, with the same result.

The loop knows queue, retries and transitions; policies are observers (`schedule.observer`). The queue is in an order
that reuses loaded base models, without head-of-line blocking.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.events import End, Event
from zo_sweeps.core.trial import Needs, Outcome, Trial, TrialState
from zo_sweeps.core.units import counted
from zo_sweeps.methods.executor import Executor
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.record.journal import JournalStore, last_step
from zo_sweeps.record.journal import outcome as recorded_outcome
from zo_sweeps.schedule.backend import NO_SLOT, Backend, Finished, Progress, Report
from zo_sweeps.schedule.ledger import Ledger
from zo_sweeps.schedule.observer import Observer
from zo_sweeps.schedule.prediction import MemoryPeaks
from zo_sweeps.schedule.snapshot import Running, Summary

POLL_SECONDS = 0.5


class Sweep:
    """A run of every trial that has no result yet, each once.

    Args:
        trials: in plan order; a repeated trial_id is ignored.
        backend: started here if there is anything to run, and always shut down.
        store, ledger: both outlive the sweep.
        observers: its policies, called in this order at every moment.
        rerun: lower-case names of states ("failed", "lost", "diverged", "out_of_memory", "succeeded") and trial_ids to
            run again. A trial without a result resumes from its journal; one with a result, or named by its trial_id,
            starts from scratch, with its old journal set aside.
        rounds: trial_id -> the round in which it is due, ascending; {}: all in plan order. See `plan.order`.
        options: how often a trial is tried again after an error, and after a lost process or node.
        on_events: gets the trial_id after events were appended to its journal.
        say: prints a line for the user.

    Raises UserError on an unknown name in `rerun`.
    """

    def __init__(
        self, trials: Sequence[Trial], backend: Backend, store: JournalStore, ledger: Ledger,
        observers: Sequence[Observer] = (), *,
        rerun: Collection[str] = (), rounds: Mapping[str, int] | None = None,
        options: Executor | None = None, on_events: Callable[[str], None] = lambda trial_id: None,
        say: Callable[[str], None] = print,
    ) -> None:  # fmt: skip
        self.trials: dict[str, Trial] = {}  # in plan order, the first occurrence of each
        for trial in trials:
            self.trials.setdefault(trial.trial_id, trial)
        check_rerun(rerun, self.trials)
        self.backend, self.store, self.ledger, self.say, self._on_events = backend, store, ledger, say, on_events
        self._observers, self._rerun, self._rounds = observers, rerun, rounds or {}
        self._options, self.memory = options or Executor(), MemoryPeaks(self.trials.values(), ledger.outcomes)
        self.queue = TrialQueue(observers, ledger, self._rounds)
        self.running: dict[str, Running] = {}
        self.heard: dict[str, Running] = {}  # those whose processes have reported; others may wait for a node
        self.counts: Counter[TrialState] = Counter()
        self.waiting: dict[str, int] = {}  # reason -> number of trials that no node can take
        self.stopped_rows: dict[str, str] = {}  # row -> why its other trials wait
        self.stop, self._ran = Stop(backend.cancel_all), 0
        self._said: set[str] = set()

    def run(self) -> Summary:
        """Run until every trial is terminal, or no trial left can get a node, or the user stops it.

        Raises HeadLostError when the cluster's head is lost.
        """
        self._fill_queue()
        already_done = sum(n for state, n in self.counts.items() if state.is_result) - self._ran
        if self.queue and not self.stop.wanted:
            with signals_restored():
                try:
                    on_stop(self.stop.interrupt)
                    self.backend.start(self._receive, len(self.queue.every))
                    self.stop.started()
                    self.say(f"{counted(len(self.queue), 'trial')} to run on {self.backend.describe()}")
                    self._loop()
                    for observer in self._observers:
                        observer.looks(last=True)
                finally:
                    self.backend.shutdown()
        counts = {state: n for state, n in self.counts.items() if n}
        over = self.stop.over if counts.keys() & {TrialState.PENDING, TrialState.CANCELLED} else ""
        ended = self.stop.interrupted, self.stop.failing, self.waiting, self.stopped_rows, over
        return Summary(counts, already_done, self._ran, *ended)

    def conclude(self, trial: Trial, outcome: Outcome) -> None:
        """Record the result of a trial that does not run."""
        before = self.ledger.state(trial.trial_id)
        self._append(trial.trial_id, [End(outcome=outcome)])
        self.ledger.write(trial.trial_id, outcome.state, error=outcome.error, outcome=outcome)
        self.queue.held.pop(trial.trial_id, None)
        self._move(before, outcome.state)
        self._ran += 1
        for observer in self._observers:
            observer.ended(Running(trial), outcome, again=False)

    def say_once(self, about: str, text: str) -> None:
        """Print a line for the user, unless one on the same subject was."""
        if about not in self._said:
            self._said.add(about)
            self.say(text)

    def _fill_queue(self) -> None:
        for trial in sorted(self.trials.values(), key=lambda trial: self._rounds.get(trial.trial_id, 0)):
            trial_id, state = trial.trial_id, self.ledger.state(trial.trial_id)
            if trial_id in self._rerun or state.value.lower() in self._rerun:
                # In this order, because a kill between the two then leaves the old result, never a mixture.
                self.ledger.write(trial_id, TrialState.PENDING, reset=True)
                if trial_id in self._rerun or state.is_result:
                    self.store.set_aside(trial_id)
            elif state.is_result or self._is_spent(trial_id):
                self.counts[state] += 1
                continue
            self.counts[TrialState.PENDING] += 1
            self.queue.held[trial_id] = trial
        for observer in self._observers:
            observer.begins(self)
        self.queue.sort()

    def _loop(self) -> None:
        while True:
            while self.queue and not self.stop.wanted:
                trial = self.queue.take(lambda trial: self.backend.fit(self.memory.corrected(trial)))
                if trial is None:
                    break
                self._launch(trial)
            for observer in self._observers:
                observer.looks()
            if not self.running and not (self.backend.grows and self.queue and not self.stop.wanted):
                return
            self.backend.poll(POLL_SECONDS, len(self.queue) + len(self.running))

    def _launch(self, trial: Trial) -> None:
        """Start an attempt, unless its trial has a result, or a damaged journal."""
        trial_id = trial.trial_id
        run = self.running[trial_id] = Running(trial, self.ledger.attempts.get(trial_id, 0) + 1)
        try:
            journal = self.store.read(trial_id)
        except UserError as error:  # a damaged journal fails this trial, not the sweep
            self._end(run, Outcome(trial_id, TrialState.FAILED, error=str(error)), final=True)
            return
        recorded = recorded_outcome(journal)
        if recorded is not None and recorded.state.is_result:  # its driver was killed between journal and ledger
            run.attempt -= 1
            self._end(run, recorded)
            return
        run.saw(journal)
        resumes = not isinstance(trial.config, TrialConfig) or trial.config.method.kind.resumes
        run.resumed_from = run.step = last_step(journal) if resumes else 0  # else its recorded steps are run again
        self.ledger.write(trial_id, TrialState.RUNNING, attempt=run.attempt)
        self._move(TrialState.PENDING, TrialState.RUNNING)
        for observer in self._observers:
            observer.started(run)
        run.node = self.backend.submit(self.memory.corrected(trial), journal, run.attempt)

    def _receive(self, report: Report) -> None:
        run = self.running.get(report.trial_id)
        if run is None or run.attempt != report.attempt:
            return  # late: the attempt was given up, and its trial may run, or have ended, elsewhere
        if isinstance(report, Progress):
            self._append(report.trial_id, report.events)
            self.heard[report.trial_id] = run
            run.saw(report.events)
            for observer in self._observers:
                observer.saw(run, report.events)
        elif isinstance(report, Finished):
            outcome = report.outcome
            if outcome.state is TrialState.CANCELLED and not self.stop.cancels:  # its node stopped
                outcome = Outcome(outcome.trial_id, TrialState.LOST, error="cancelled where it ran")
            self._end(run, outcome)
        else:
            if report.sick or not report.blameless:
                self.queue.avoid(run.trial, report.node)
            for observer in self._observers:
                observer.lost(report)
            self._end(run, Outcome(report.trial_id, TrialState.LOST, error=report.reason), blameless=report.blameless)

    def _end(self, run: Running, outcome: Outcome, *, final: bool = False, blameless: bool = False) -> None:
        """Record the end of an attempt: ledger, counts, and either the next attempt or the end of the trial."""
        trial, state, before = run.trial, outcome.state, self.ledger.state(run.trial.trial_id)
        self.ledger.write(
            trial.trial_id, state, attempt=run.attempt, node=run.node, error=outcome.error, outcome=outcome,
            blameless=blameless,
        )  # fmt: skip
        self.memory.learn(trial, outcome)
        del self.running[trial.trial_id]
        self.heard.pop(trial.trial_id, None)
        self.queue.left(trial)
        again = state.is_retryable and not final and not self._is_spent(trial.trial_id)
        self._move(before, TrialState.PENDING if again or state is TrialState.PAUSED else state)
        if again:
            self.queue.offer(trial, first=state is TrialState.LOST)  # a failed one goes behind those that may succeed
        elif state is TrialState.PAUSED:
            self.queue.held[trial.trial_id] = trial  # until an observer sorts again
        elif state is not TrialState.CANCELLED:
            self._ran += 1
            if state is TrialState.LOST:  # no process was left to write this to the journal
                self._append(trial.trial_id, [End(outcome=outcome)])
        for observer in self._observers:
            observer.ended(run, outcome, again)

    def _is_spent(self, trial_id: str) -> bool:
        failures, losses = self.ledger.failures.get(trial_id, 0), self.ledger.losses.get(trial_id, 0)
        return failures > self._options.retries_failed or losses > self._options.retries_lost

    def _append(self, trial_id: str, events: list[Event]) -> None:
        self.store.append(trial_id, events)
        self._on_events(trial_id)

    def _move(self, before: TrialState, after: TrialState) -> None:
        self.counts[before if before is TrialState.RUNNING else TrialState.PENDING] -= 1
        self.counts[after] += 1


def check_rerun(rerun: Collection[str], trials: Collection[str]) -> None:
    """Raise UserError unless each name in `rerun` is a state that can be rerun, or one of the trials."""
    known = [state.value.lower() for state in TrialState if state.is_result or state.is_retryable]
    for name in rerun:
        if name not in known and name not in trials:
            raise unknown("state or trial of this sweep", name, known, where="--rerun")


Group = tuple[str, Needs, str, frozenset[str]]


class TrialQueue:
    """The trials without a result that do not run: ready ones, and those that an observer holds back.

    The ready ones are in plan order, in groups of the same base model, needs, memory key and nodes to avoid. The trials
    of a group are interchangeable to a backend, so a choice costs O(groups), not O(trials), and a group that fits on no
    node now is skipped. Length and iteration are of the ready ones.

    Args:
        rounds: the round in which each trial_id is due, ascending; {}: one round.

    Attributes:
        held: those that are held back, by trial_id.
    """

    def __init__(self, observers: Sequence[Observer], ledger: Ledger, rounds: Mapping[str, int]) -> None:
        self._observers, self._ledger, self._rounds = observers, ledger, rounds
        self.held: dict[str, Trial] = {}
        self._avoided: dict[str, frozenset[str]] = {}  # trial_id -> the nodes where it was lost
        self._groups: dict[Group, deque[Trial]] = {}
        self._running: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(len(group) for group in self._groups.values())

    def __iter__(self) -> Iterator[Trial]:
        for group in self._groups.values():
            yield from group

    @property
    def every(self) -> list[Trial]:
        """The trials, ready or not."""
        return [*self, *self.held.values()]

    def offer(self, trial: Trial, *, first: bool = False) -> None:
        """Put a trial, or hold it back with the reason in the ledger."""
        ledger, trial_id = self._ledger, trial.trial_id
        reason, known = self._reason(trial), ledger.held.get(trial_id, "")
        if reason != known and ledger.state(trial_id) is TrialState.PENDING:
            ledger.write(trial_id, TrialState.PENDING, error=reason)
        if reason:
            self.held[trial_id] = trial
        else:
            self.held.pop(trial_id, None)
            self.put(trial, first=first)

    def sort(self) -> None:
        """Ask the observers again which trials may start; call it when the answer of one has changed."""
        withdrawn = {trial.trial_id: trial for trial in self if self._reason(trial)}
        for key, group in self._groups.items():
            self._groups[key] = deque(trial for trial in group if trial.trial_id not in withdrawn)
        for trial in (*withdrawn.values(), *self.held.values()):
            self.offer(trial, first=self._ledger.state(trial.trial_id) is TrialState.PAUSED)

    def _reason(self, trial: Trial) -> str:
        return next((reason for observer in self._observers if (reason := observer.ready(trial))), "")

    def put(self, trial: Trial, *, first: bool = False) -> None:
        """Add a trial at the end of its group, or at its front; a new group then comes before its equals."""
        away = self._avoided.get(trial.trial_id, frozenset())
        key = trial.warm_key, trial.needs, trial.memory_key, away
        if first and not self._groups.get(key):
            self._groups = {key: deque(), **{other: group for other, group in self._groups.items() if other != key}}
        group = self._groups.setdefault(key, deque())
        group.appendleft(trial) if first else group.append(trial)

    def avoid(self, trial: Trial, node: str) -> None:
        """Note where a trial was lost, before it is put again: it may go to other nodes than those alike."""
        self._avoided[trial.trial_id] = self._avoided.get(trial.trial_id, frozenset()) | {node}

    def take(self, fit: Callable[[Trial], int]) -> Trial | None:
        """Remove and return the next trial to start; None when `fit` (as in Backend) finds no slot for any.

        The earliest round comes first. In it, a trial that names its device, because the others have more choice; then
        one whose base model a free slot holds, then the base model with the fewest running trials (so that slots spread
        over base models and each slot loads few), then plan order. Call `left` when the trial has ended.
        """
        ranks: list[tuple[tuple[int, bool, int, int], deque[Trial]]] = []
        for (warm_key, needs, *_), group in self._groups.items():
            if group and (warmth := fit(group[0])) != NO_SLOT:
                due = -self._rounds.get(group[0].trial_id, 0)
                ranks.append(((due, needs.device != "auto", warmth, -self._running[warm_key]), group))
        if not ranks:
            return None
        trial = max(ranks, key=lambda rank: rank[0])[1].popleft()
        self._running[trial.warm_key] += 1
        return trial

    def left(self, trial: Trial) -> None:
        """Note that a trial from `take` has stopped running."""
        self._running[trial.warm_key] -= 1

    def heads(self) -> list[tuple[Trial, int]]:
        """Return the first trial of every group and the number of trials in it."""
        return [(group[0], len(group)) for group in self._groups.values() if group]


STOPS = (signal.SIGINT, signal.SIGTERM)


def on_stop(function: Callable[[], None]) -> None:
    """Call `function` on SIGINT and SIGTERM; in a thread, which gets no signals, do nothing."""
    if threading.current_thread() is threading.main_thread():
        for number in STOPS:
            signal.signal(number, lambda *_: function())


class Stop:
    """Why a sweep starts no further trial. Ctrl-C and SIGTERM: the second ends the sweep at once.

    Attributes:
        interrupted: whether there was a signal.
        cancelled: whether a cap of the budget ended the running trials.
        failing: the cause that the first trials failed of, if it is one; "".
        over: the cap of the budget that is reached; "".
    """

    def __init__(self, cancel_all: Callable[[], None]) -> None:
        self._cancel_all = cancel_all
        self._runs = False  # till then a signal is kept: Ray does not survive an exception in the middle of its start
        self.interrupted = self.cancelled = False
        self.failing = self.over = ""

    @property
    def cancels(self) -> bool:
        """Whether the running trials were asked to stop."""
        return self.interrupted or self.cancelled

    @property
    def wanted(self) -> bool:
        """Whether no further trial is started."""
        return self.cancels or bool(self.failing)

    def cancel(self) -> None:
        """Ask the running trials to stop after their step."""
        self.cancelled = True
        self._cancel_all()

    def started(self) -> None:
        """Cancel at a signal from now on, as Ray has set handlers of its own, and at one that came before."""
        self._runs = True
        on_stop(self.interrupt)
        if self.interrupted:
            self._cancel_all()

    def interrupt(self) -> None:
        """Take a signal."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True  # an observer reports it: printing is not safe in a signal handler
        if self._runs:
            self._cancel_all()
        else:
            os.write(2, b"stopping as soon as it has started (Ctrl-C again: stop at once)\n")  # which is safe


@contextmanager
def signals_restored() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM after the `with` block, replacing ours and the ones that Ray sets."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
