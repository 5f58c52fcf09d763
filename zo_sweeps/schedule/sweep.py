"""The loop of a sweep: pending -> running -> terminal, with bounded retries, resume and a clean stop.

The driver owns the truth. Trials stream events; the driver appends them to the trial's journal, then writes the
ledger, then starts the next trial. A driver killed at any moment loses at most the events still in their processes; the
resumed attempt recomputes them from the last scalars, with the same result.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Protocol

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.trial import Event, Outcome, Trial, TrialState
from zo_sweeps.record.journal import last_step
from zo_sweeps.record.journal import outcome as recorded_outcome
from zo_sweeps.schedule.backend import Backend, Finished, Progress, Report
from zo_sweeps.schedule.ledger import Ledger
from zo_sweeps.schedule.memory import Measured
from zo_sweeps.schedule.queue import ReadyQueue
from zo_sweeps.schedule.signals import on_stop, signals_restored
from zo_sweeps.schedule.snapshot import Running, Snapshot, Summary

POLL_SECONDS = 0.5
WAITS_SECONDS = 1.0  # interval between checks of why trials wait
SAME_ERRORS = 5  # if so many different trials fail with the same error, and none has a result, the sweep is at fault


class Store(Protocol):
    """A store of journals; `zo_sweeps.record.journal.JournalStore` is one."""

    def read(self, trial_id: str) -> list[Event]: ...
    def append(self, trial_id: str, events: list[Event]) -> None: ...
    def set_aside(self, trial_id: str) -> None: ...


class Sweep:
    """A run of every trial that has no result yet, each once.

    Args:
        trials: in plan order; a repeated trial_id is ignored.
        backend: started here if there is anything to run, and always shut down.
        store, ledger: see Store and Ledger; both outlive the sweep.
        rerun: lower-case names of states ("failed", "lost", "diverged", "out_of_memory", "succeeded") and trial_ids to
            run again. A trial without a result resumes from its journal; one with a result, or named by its trial_id,
            starts from scratch, with its old journal set aside.
        retries_failed, retries_lost: further attempts after an error, and after a lost process or node.
        on_update: gets a Snapshot twice per second and whenever a trial ends.
        on_events: gets the trial_id after events were appended to its journal.
        say: prints a line for the user.

    Raises UserError on an unknown name in `rerun`.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        backend: Backend,
        store: Store,
        ledger: Ledger,
        *,
        rerun: frozenset[str] = frozenset(),
        retries_failed: int = 1,
        retries_lost: int = 3,
        on_update: Callable[[Snapshot], None] = lambda snapshot: None,
        on_events: Callable[[str], None] = lambda trial_id: None,
        say: Callable[[str], None] = print,
    ) -> None:
        self.trials = {trial.trial_id: trial for trial in reversed(trials)}
        self.trials = dict(reversed(self.trials.items()))  # plan order, first occurrence kept
        known = {state.value.lower() for state in TrialState if state.is_result or state.is_retryable}
        for name in rerun - known - self.trials.keys():
            raise unknown("state or trial of this sweep", name, known, where="--rerun")
        self._backend, self._store, self._ledger = backend, store, ledger
        self._rerun, self._retries_failed, self._retries_lost = rerun, retries_failed, retries_lost
        self._on_update, self._on_events, self._say = on_update, on_events, say
        self._memory = Measured(self.trials.values(), ledger.outcomes)
        self._queue = ReadyQueue(kind=attrgetter("memory_key"))
        self._waiting: dict[str, int] = {}
        self._waits_at = 0.0
        self._reported_waits: set[str] = set()
        self._running: dict[str, Running] = {}
        self._interrupted = self._announced = False
        self._warned: set[str] = set()
        self._stopped = ""
        self._ran = 0
        self._failed_lines: dict[str, str] | None = {}  # None once anything had a result
        self._cost_total = sum(trial.cost for trial in self.trials.values())
        self._cost_done = self._cost_this_run = 0.0
        self._counts: Counter[TrialState] = Counter()
        self._started = time.monotonic()

    def run(self) -> Summary:
        """Run until every trial is terminal, or no trial left can get a node, or the user stops it.

        Raises HeadLostError when the cluster's head is lost.
        """
        self._fill_queue()
        already_done = sum(n for state, n in self._counts.items() if state.is_result)
        if self._queue:
            with signals_restored():
                try:
                    self._backend.start(self._receive, len(self._queue))
                    on_stop(self._interrupt)
                    self._say(f"{len(self._queue)} trials to run on {self._backend.describe()}")
                    self._started = time.monotonic()
                    self._loop()
                    self._waiting = self._waits()
                finally:
                    self._backend.shutdown()
        counts = {state: n for state, n in self._counts.items() if n}
        return Summary(counts, already_done, self._ran, self._interrupted, self._stopped, self._waiting)

    def _fill_queue(self) -> None:
        for trial_id, trial in self.trials.items():
            state = self._ledger.states.get(trial_id, TrialState.PENDING)
            ended = state.is_result or self._spent(trial_id)
            by_id, by_state = trial_id in self._rerun, state.value.lower() in self._rerun
            if by_id or by_state:
                # In this order, because a kill between the two then leaves the old result, never a mixture.
                self._ledger.write(trial_id, TrialState.PENDING, reset=True)
                if by_id or state.is_result:
                    self._store.set_aside(trial_id)
            elif ended:
                self._counts[state] += 1
                self._cost_done += trial.cost
                continue
            self._counts[TrialState.PENDING] += 1
            self._queue.put(trial)

    def _spent(self, trial_id: str) -> bool:
        """Return whether the trial's retries are used up."""
        failures, losses = self._ledger.failures.get(trial_id, 0), self._ledger.losses.get(trial_id, 0)
        return failures > self._retries_failed or losses > self._retries_lost

    def _loop(self) -> None:
        while True:
            while not self._interrupted and not self._stopped:
                trial = self._queue.take(lambda trial: self._backend.fit(self._memory.corrected(trial)))
                if trial is None:
                    break
                self._launch(trial)
            self._tell_waits()
            self._update()
            hope = self._backend.grows and self._queue and not self._interrupted and not self._stopped
            if not self._running and not hope:
                return
            self._backend.poll(POLL_SECONDS)

    def _waits(self) -> dict[str, int]:
        """Return reason -> number of ready trials that no node can take."""
        waits: Counter[str] = Counter()
        for trial, n in self._queue.heads():
            if reason := self._backend.refusal(self._memory.corrected(trial)):
                waits[reason] += n
        return dict(waits)

    def _tell_waits(self) -> None:
        if time.monotonic() - self._waits_at < WAITS_SECONDS:
            return
        self._waiting, self._waits_at = self._waits(), time.monotonic()
        if not self._backend.grows:
            return  # reported at the end
        for reason, n in self._waiting.items():
            kind = reason.partition(":")[0]
            if kind not in self._reported_waits:
                self._reported_waits.add(kind)
                self._say(f"{n} trial{'s wait' if n > 1 else ' waits'} for a node to join: {reason}")
        idle = self._queue and not any(run.heard for run in self._running.values())
        if idle and not self._waiting and (why := self._backend.held_up()):
            self._waiting = {why: len(self._queue)}
            if why not in self._reported_waits:
                self._reported_waits.add(why)
                self._say(f"waits: {why}")

    def _launch(self, trial: Trial) -> None:
        trial_id = trial.trial_id
        attempt = self._ledger.attempts.get(trial_id, 0) + 1
        run = self._running[trial_id] = Running(trial, attempt, "", 0, 0, time.monotonic())
        try:
            journal = self._store.read(trial_id)
        except UserError as error:  # a damaged journal fails this trial, not the sweep
            self._end(run, Outcome(trial_id, TrialState.FAILED, error=str(error)), final=True)
            return
        recorded = recorded_outcome(journal)
        if recorded is not None and recorded.state.is_result:  # its driver was killed between journal and ledger
            run.attempt -= 1
            self._end(run, recorded)
            return
        run.resumed_from = run.step = last_step(journal)
        self._cost_done += self._part(run, run.resumed_from)
        self._ledger.write(trial_id, TrialState.RUNNING, attempt=attempt)
        self._move(trial_id, TrialState.PENDING, TrialState.RUNNING)
        run.node = self._backend.submit(self._memory.corrected(trial), journal, attempt)

    def _receive(self, report: Report) -> None:
        run = self._running.get(report.trial_id)
        if run is None or run.attempt != report.attempt:
            return  # late: the attempt was given up, and its trial may run, or have ended, elsewhere
        if isinstance(report, Progress):
            run.heard = True
            self._store.append(report.trial_id, report.events)
            for event in report.events:
                if event["type"] == "steps":
                    run.step = event["first"] + len(event["losses"]) - 1
                elif event["type"] == "warning" and event["metric"] not in self._warned:
                    self._warned.add(event["metric"])
                    self._say(f"{run.trial.label or report.trial_id}: {event['text']} (said once per sweep)")
            self._on_events(report.trial_id)
            self._update()
        elif isinstance(report, Finished):
            outcome = report.outcome
            if outcome.state is TrialState.CANCELLED and not self._interrupted:  # its node was stopped, not this sweep
                outcome = Outcome(outcome.trial_id, TrialState.LOST, error="cancelled where it ran")
            self._end(run, outcome)
        else:
            lost = Outcome(report.trial_id, TrialState.LOST, error=report.reason)
            self._end(run, lost, blameless=report.blameless)

    def _end(self, run: Running, outcome: Outcome, *, final: bool = False, blameless: bool = False) -> None:
        """Record the end of an attempt: ledger, counts, and either the next attempt or the end of the trial."""
        trial, state = run.trial, outcome.state
        trial_id = trial.trial_id
        before = self._ledger.states.get(trial_id, TrialState.PENDING)
        self._ledger.write(
            trial_id,
            state,
            attempt=run.attempt,
            node=run.node,
            error=outcome.error,
            outcome=outcome,
            blameless=blameless,
        )
        self._memory.learn(trial, outcome)
        del self._running[trial_id]
        self._queue.left(trial)
        again = state.is_retryable and not final and not self._spent(trial_id)
        resumable = again or state is TrialState.CANCELLED
        self._move(trial_id, before, TrialState.PENDING if again else state)
        self._cost_done -= self._part(run, run.resumed_from)
        if resumable:
            self._cost_this_run += self._part(run, run.step) - self._part(run, run.resumed_from)
        else:
            self._cost_done += trial.cost
            self._cost_this_run += trial.cost - self._part(run, run.resumed_from)
            self._ran += 1
        if again:
            self._queue.put(trial, first=state is TrialState.LOST)  # a failed one goes behind trials that may succeed
        elif state is TrialState.LOST:  # no process was left to write this to the journal
            self._store.append(trial_id, [{"type": "end", "time": time.time(), "outcome": outcome.to_json()}])
            self._on_events(trial_id)
        self._look_for_one_cause(trial_id, outcome, again)
        self._update(None if resumable else (trial, outcome))

    def _interrupt(self) -> None:
        """Handle a signal: the first asks the trials to stop at their next step, the second ends the sweep at once."""
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True  # `_update` reports it: printing is not safe in a signal handler
        self._backend.cancel_all()

    def _look_for_one_cause(self, trial_id: str, outcome: Outcome, again: bool) -> None:
        """Stop launching when the first SAME_ERRORS different trials all failed in the same way.

        Every FAILED attempt counts, but of LOST ones only a trial's last: one dying node takes several trials with it.
        """
        if outcome.state.is_result:
            self._failed_lines = None
        if self._failed_lines is None or not outcome.state.is_retryable or (outcome.state is TrialState.LOST and again):
            return
        self._failed_lines[trial_id] = re.sub(r"[0-9a-f]{8,}|\d+", "#", outcome.error)
        if len(self._failed_lines) >= SAME_ERRORS and len(set(self._failed_lines.values())) == 1 and not self._stopped:
            self._stopped = (
                f"the first {len(self._failed_lines)} trials all failed in the same way, so the other "
                f"{len(self._queue)} were not started: {outcome.error}"
            )
            self._say(self._stopped)

    def _move(self, trial_id: str, before: TrialState, after: TrialState) -> None:
        pending = before is not TrialState.RUNNING
        self._counts[TrialState.PENDING if pending else before] -= 1
        self._counts[after] += 1

    def _part(self, run: Running, step: int) -> float:
        return run.trial.cost * min(1.0, step / run.trial.steps) if run.trial.steps else 0.0

    def _update(self, ended: tuple[Trial, Outcome] | None = None) -> None:
        running = tuple(run for run in self._running.values() if run.heard)
        if self._interrupted and not self._announced:
            self._announced = True
            trials = f"{len(running)} running trial{'s' * (len(running) != 1)}"
            self._say(
                f"stopping after the current step of {trials}; the same command resumes from there "
                "(Ctrl-C again: stop at once)"
            )
        now = sum(self._part(run, run.step) - self._part(run, run.resumed_from) for run in running)
        self._on_update(
            Snapshot(
                total=len(self.trials),
                counts={state: n for state, n in self._counts.items() if n},
                cost_total=self._cost_total,
                cost_done=self._cost_done + now,
                cost_this_run=self._cost_this_run + now,
                seconds=time.monotonic() - self._started,
                running=running,
                waiting=self._waiting,
                ended=ended,
            )
        )
