"""The loop of a sweep: pending -> running -> terminal, with bounded retries, resume and a clean stop.

The driver owns the truth. Trials stream events; the driver appends them to the trial's journal, then writes the
ledger, then starts the next trial. A driver killed at any moment loses at most the events still in their processes; the
resumed attempt recomputes them from the last scalars, with the same result.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.trial import Event, Outcome, Trial, TrialState
from zo_sweeps.record.journal import last_step
from zo_sweeps.record.journal import outcome as recorded_outcome
from zo_sweeps.schedule.backend import WARM, Attempt, Backend, Finished, Progress, Report
from zo_sweeps.schedule.budget import Meter
from zo_sweeps.schedule.fused import beside, lead
from zo_sweeps.schedule.halving import Group, Halving
from zo_sweeps.schedule.ledger import Forecast, Ledger
from zo_sweeps.schedule.memory import Measured
from zo_sweeps.schedule.prediction import Predictions
from zo_sweeps.schedule.queue import ReadyQueue
from zo_sweeps.schedule.same_errors import SameErrors
from zo_sweeps.schedule.signals import on_stop, signals_restored
from zo_sweeps.schedule.snapshot import Running, Snapshot, Summary

POLL_SECONDS = 0.5
WAITS_SECONDS = 1.0  # interval between checks of why trials wait
SAME_ERRORS = 5  # if so many different trials fail with the same error, and none has a result, the sweep is at fault
ROW_ERRORS = 3  # the same of a row: its other trials wait until the command is run again


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
        rounds: trial_id -> the round in which it is due, ascending; {}: all in plan order. See `plan.order`.
        rows: block -> its printed name.
        meter: of the sweep's budget. When a cap is reached, trials end at their next step, as after Ctrl-C.
        groups: of trials that are compared at rungs. See `schedule.halving`.
        predictions: of the trials' seconds, for the ledger and the ETA; they learn from each trial that ends.
        fuse: whether trials may share a process and forwards; see `schedule.fused`.
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
        rounds: Mapping[str, int] | None = None,
        rows: Mapping[str, str] | None = None,
        meter: Meter | None = None,
        groups: Sequence[Group] = (),
        predictions: Predictions | None = None,
        fuse: bool = False,
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
        self._fuse = fuse
        self._rerun, self._retries_failed, self._retries_lost = rerun, retries_failed, retries_lost
        self._on_update, self._on_events, self._say = on_update, on_events, say
        self._memory = Measured(self.trials.values(), ledger.outcomes)
        self._rounds, self._rows, self._meter = rounds or {}, rows or {}, meter or Meter()
        self._halving = Halving(groups)
        self._lost_on: dict[str, frozenset[str]] = {}  # trial_id -> the nodes where it was lost: it prefers others
        self._queue = ReadyQueue(kind=self._kind, rounds=self._rounds)
        self._waiting: dict[str, int] = {}
        self._waits_at = 0.0
        self._reported_waits: set[str] = set()
        self._running: dict[str, Running] = {}
        self._interrupted = self._announced = False
        self._warned: set[str] = set()
        self._sick: set[str] = set()  # nodes that the user was told about
        self._stopped = ""
        self._ran = 0
        self._over, self._cancelled, self._unmetered = "", False, False
        self._begun = self.trials.keys() & ledger.attempts.keys()
        self._same_errors = SameErrors(SAME_ERRORS)
        self._same_in_row: defaultdict[str, SameErrors] = defaultdict(lambda: SameErrors(ROW_ERRORS))
        self._held: dict[str, list[Trial]] = {}  # block of a stopped row -> its trials that wait
        self._stopped_rows: dict[str, str] = {}  # ... -> why
        self._predictions = predictions or Predictions(None)
        self._planned = {trial_id: self._predictions.seconds(trial) for trial_id, trial in self.trials.items()}
        self._predicted = None not in self._planned.values()
        self._cost_total = sum(map(self._cost, self.trials.values()))
        self._cost_done = self._cost_this_run = self._tokens_this_run = 0.0
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
                    on_stop(self._interrupt_start)  # Ray does not survive an exception in the middle of its start
                    self._backend.start(self._receive, len(self._queue))
                    on_stop(self._interrupt)  # Ray has set handlers of its own
                    if self._interrupted:
                        self._backend.cancel_all()
                    self._say(f"{len(self._queue)} trials to run on {self._backend.describe()}")
                    self._started = time.monotonic()
                    self._loop()
                    self._waiting = self._waits()
                    self._tell_paused()
                finally:
                    self._backend.shutdown()
        counts = {state: n for state, n in self._counts.items() if n}
        rows = {self._row(block): why for block, why in self._stopped_rows.items()}
        is_complete = not (counts.keys() & {TrialState.PENDING, TrialState.CANCELLED})
        ended = self._interrupted, self._stopped, self._waiting, rows, "" if is_complete else self._over
        return Summary(counts, already_done, self._ran, *ended)

    def _fill_queue(self) -> None:
        ready = []
        due = sorted(self.trials.values(), key=lambda trial: self._rounds.get(trial.trial_id, 0))
        for trial in due:
            trial_id = trial.trial_id
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
                self._cost_done += self._cost(trial)
                continue
            self._counts[TrialState.PENDING] += 1
            if trial_id in self._ledger.held:  # by an earlier run
                self._ledger.write(trial_id, TrialState.PENDING)
            ready.append(trial)
        self._read_rungs({trial.trial_id for trial in ready})
        for trial in ready:
            if not self._halving.waits(trial.trial_id):
                self._queue.put(trial)
        self._judge()

    def _read_rungs(self, ready: set[str]) -> None:
        """Read from the journals how far the trials of the groups are, and what was decided."""
        for trial_id in self._halving.trial_ids:
            try:
                self._halving.see(trial_id, self._store.read(trial_id))
            except UserError:  # a damaged journal fails its trial when that is launched
                continue
            if trial_id not in ready:
                self._halving.ended(trial_id)

    def _judge(self) -> None:
        """Go on with, or stop, the trials at a rung whose rivals are all there. The decision is written first."""
        for verdict in self._halving.verdicts(self._running):
            trial, trial_id = self.trials[verdict.trial_id], verdict.trial_id
            self._store.append(trial_id, [verdict.event])
            if verdict.goes_on:
                self._queue.put(trial, first=True)
                continue
            paused = self._ledger.outcomes.get(trial_id, Outcome(trial_id, TrialState.PAUSED))
            why = f"stopped at {verdict.step} of {trial.steps} steps"
            outcome = replace(paused, state=TrialState.STOPPED, steps_done=verdict.step, error=why)
            before = self._ledger.states.get(trial_id, TrialState.PENDING)
            self._store.append(trial_id, [{"type": "end", "time": time.time(), "outcome": outcome.to_json()}])
            self._ledger.write(trial_id, TrialState.STOPPED, error=why, outcome=outcome)
            self._move(trial_id, before, TrialState.STOPPED)
            self._cost_done += self._cost(trial)
            self._ran += 1
            self._on_events(trial_id)
            self._update((trial, outcome))

    def _spent(self, trial_id: str) -> bool:
        """Return whether the trial's retries are used up."""
        failures, losses = self._ledger.failures.get(trial_id, 0), self._ledger.losses.get(trial_id, 0)
        return failures > self._retries_failed or losses > self._retries_lost

    def _loop(self) -> None:
        while True:
            self._spend()
            while self._queue and not self._is_stopping:
                self._keep_to_begun()
                trial = self._queue.take(lambda trial: self._backend.fit(self._memory.corrected(trial)))
                if trial is None:
                    break
                self._launch([trial, *self._beside(trial)])
            self._tell_waits()
            self._update()
            hope = self._backend.grows and self._queue and not self._is_stopping
            if not self._running and not hope:
                return
            self._backend.poll(POLL_SECONDS)

    @property
    def _is_stopping(self) -> bool:
        """Whether no further trial is started."""
        return bool(self._interrupted or self._stopped or self._cancelled)

    def _spend(self) -> None:
        """Count the time since the last call, and ask the trials to stop where a cap of the budget is reached."""
        self._meter.tick(bool(self._running))
        if self._interrupted or self._cancelled or not (over := self._meter.reached()):
            return
        self._cancelled, self._over = True, over
        running = f"{len(self._running)} running trial{'s' * (len(self._running) != 1)}"
        self._say(f"{over}; stopping after the current step of {running}" if self._running else over)
        self._backend.cancel_all()

    def _keep_to_begun(self) -> None:
        """Withdraw the trials that have not begun if the budget allows no more of them."""
        if self._over or not (full := self._meter.full(len(self._begun))):
            return
        if self._queue.withdraw(lambda trial: trial.trial_id not in self._begun):
            self._over = full
            self._say(f"{full}; no further trial is started")

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

    def _beside(self, trial: Trial) -> list[Trial]:
        """Take the trials from the queue that share a process with this one."""
        return beside(trial, self._queue, self._backend, self._memory.corrected) if self._fuse else []

    def _tell_paused(self) -> None:
        """Say which trials cannot go on because rivals of theirs have not come to their rung."""
        if (n := len(self._halving.paused)) and not self._is_stopping and not self._over:
            trials = f"{n} trial{'s wait' if n > 1 else ' waits'}"
            self._say(f"{trials} at a rung: other settings of their cell have neither reached it nor ended")

    def _launch(self, trials: Sequence[Trial]) -> None:
        """Start attempts, in one process if they are several."""
        attempts = [attempt for trial in trials if (attempt := self._begin(trial))]
        if not attempts:
            return
        first, *others = attempts
        placed = lead(self._memory.corrected(first.trial), len(attempts))
        node = self._backend.submit(placed, first.journal, first.number, *([others] if others else []))
        for attempt in attempts:
            self._running[attempt.trial.trial_id].node = node

    def _begin(self, trial: Trial) -> Attempt | None:
        """Note that an attempt starts; None if its trial has a result, or a damaged journal."""
        trial_id = trial.trial_id
        attempt = self._ledger.attempts.get(trial_id, 0) + 1
        self._begun.add(trial_id)
        run = self._running[trial_id] = Running(trial, attempt, "", 0, 0, time.monotonic())
        try:
            journal = self._store.read(trial_id)
        except UserError as error:  # a damaged journal fails this trial, not the sweep
            self._end(run, Outcome(trial_id, TrialState.FAILED, error=str(error)), final=True)
            return None
        recorded = recorded_outcome(journal)
        if recorded is not None and recorded.state.is_result:  # its driver was killed between journal and ledger
            run.attempt -= 1
            self._end(run, recorded)
            return None
        run.resumed_from = run.step = last_step(journal)
        run.dev = next((event for event in reversed(journal) if event["type"] == "eval"), None)
        self._cost_done += self._part(run, run.resumed_from)
        self._ledger.write(trial_id, TrialState.RUNNING, attempt=attempt, forecast=self._forecast(run))
        self._move(trial_id, TrialState.PENDING, TrialState.RUNNING)
        return Attempt(trial, journal, attempt)

    def _receive(self, report: Report) -> None:
        run = self._running.get(report.trial_id)
        if run is None or run.attempt != report.attempt:
            return  # late: the attempt was given up, and its trial may run, or have ended, elsewhere
        if isinstance(report, Progress):
            run.heard = True
            self._store.append(report.trial_id, report.events)
            self._halving.see(report.trial_id, report.events)
            if self._meter.see(report.events) and not self._unmetered:
                self._unmetered = True
                self._say(
                    f"budget.joules: {run.node} reports no energy, so its trials do not count (said once per sweep)"
                )
            for event in report.events:
                if event["type"] == "steps":
                    run.step = event["first"] + len(event["losses"]) - 1
                elif event["type"] == "eval":
                    run.dev = event
                elif event["type"] == "warning" and event["metric"] not in self._warned:
                    self._warned.add(event["metric"])
                    self._say(f"{run.trial.label or report.trial_id}: {event['text']} (said once per sweep)")
            self._on_events(report.trial_id)
            self._spend()
            self._update()
        elif isinstance(report, Finished):
            outcome = report.outcome
            stops = self._interrupted or self._cancelled
            if outcome.state is TrialState.CANCELLED and not stops:  # its node was stopped, not this sweep
                outcome = Outcome(outcome.trial_id, TrialState.LOST, error="cancelled where it ran")
            self._end(run, outcome)
        else:
            lost = Outcome(report.trial_id, TrialState.LOST, error=report.reason)
            if report.sick or not report.blameless:
                self._lost_on[report.trial_id] = self._lost_on.get(report.trial_id, frozenset()) | {report.node}
            if report.sick and report.node not in self._sick:
                self._sick.add(report.node)
                self._say(f"{report.sick}: it gets fewer trials until one finishes there (said once per sweep)")
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
        if not run.resumed_from:
            self._predictions.learn(trial, outcome)
        del self._running[trial_id]
        self._queue.left(trial)
        again = state.is_retryable and not final and not self._spent(trial_id)
        paused = state is TrialState.PAUSED
        resumable = again or paused or state is TrialState.CANCELLED
        self._move(trial_id, before, TrialState.PENDING if again or paused else state)
        self._cost_done -= self._part(run, run.resumed_from)
        if not resumable:
            self._cost_done += self._cost(trial)
            self._ran += 1
        share = (_share(run, run.step) if resumable else 1.0) - _share(run, run.resumed_from)
        self._cost_this_run += self._cost(trial) * share
        self._tokens_this_run += trial.cost * share
        if again:
            self._queue.put(trial, first=state is TrialState.LOST)  # a failed one goes behind trials that may succeed
        elif state is TrialState.LOST:  # no process was left to write this to the journal
            self._store.append(trial_id, [{"type": "end", "time": time.time(), "outcome": outcome.to_json()}])
            self._on_events(trial_id)
        self._look_for_one_cause(trial, outcome, again)
        self._update(None if resumable else (trial, outcome))
        if not resumable:
            self._halving.ended(trial_id)
        self._judge()

    def _interrupt_start(self) -> None:
        """Handle a signal while the backend starts: the first is kept until it has, the second ends the sweep."""
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True
        os.write(2, b"stopping as soon as it has started (Ctrl-C again: stop at once)\n")  # safe in a signal handler

    def _interrupt(self) -> None:
        """Handle a signal: the first asks the trials to stop at their next step, the second ends the sweep at once."""
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True  # `_update` reports it: printing is not safe in a signal handler
        self._backend.cancel_all()

    def _look_for_one_cause(self, trial: Trial, outcome: Outcome, again: bool) -> None:
        """Stop launching when the first SAME_ERRORS trials failed in the same way; of a row, the first ROW_ERRORS."""
        block = trial.block
        if self._same_errors.see(trial.trial_id, outcome, again) and not self._stopped:
            waiting = len(self._queue) + sum(map(len, self._held.values()))
            self._stopped = (
                f"the first {self._same_errors.count} trials all failed in the same way, so the other "
                f"{waiting} were not started: {outcome.error}"
            )
            self._say(self._stopped)
        if block and self._same_in_row[block].see(trial.trial_id, outcome, again):
            self._stop_row(block, outcome.error)
        elif outcome.state.is_result and block in self._held:  # one that ran meanwhile shows that the row is sound
            del self._stopped_rows[block]
            for held in self._held.pop(block):
                self._ledger.write(held.trial_id, TrialState.PENDING)
                self._queue.put(held)

    def _stop_row(self, block: str, error: str) -> None:
        """Withdraw the trials of a row that have not failed, with the reason in the ledger; retries go on."""
        held = self._queue.withdraw(lambda trial: trial.block == block and not self._has_failed(trial))
        if not held:
            return
        why = (
            f"the first {self._same_in_row[block].count} trials of the row {self._row(block)} failed in the same way, "
            f"so its other {len(held)} wait until the command is run again: {error}"
        )
        self._held[block], self._stopped_rows[block] = held, why
        self._say(why)
        for trial in held:
            self._ledger.write(trial.trial_id, TrialState.PENDING, error=why)

    def _has_failed(self, trial: Trial) -> bool:
        return self._ledger.states.get(trial.trial_id, TrialState.PENDING).is_retryable

    def _kind(self, trial: Trial) -> str:
        """Return what trials of the queue have in common that may go to the same nodes."""
        return "/".join([trial.memory_key, *sorted(self._lost_on.get(trial.trial_id, ()))])

    def _row(self, block: str) -> str:
        return self._rows.get(block, block)

    def _move(self, trial_id: str, before: TrialState, after: TrialState) -> None:
        pending = before is not TrialState.RUNNING
        self._counts[TrialState.PENDING if pending else before] -= 1
        self._counts[after] += 1

    def _cost(self, trial: Trial) -> float:
        """Return the seconds of a trial as planned; its forwarded tokens if those of some trial are not known."""
        return (self._planned[trial.trial_id] or 0.0) if self._predicted else trial.cost

    def _part(self, run: Running, step: int) -> float:
        return self._cost(run.trial) * _share(run, step)

    def _forecast(self, run: Running) -> Forecast | None:
        """Return the predicted seconds of an attempt from the first step; None where they are not known."""
        expected, planned = self._predictions.seconds(run.trial), self._planned[run.trial.trial_id]
        if run.resumed_from or expected is None:
            return None
        warm = self._backend.fit(self._memory.corrected(run.trial)) == WARM
        loads = 0.0 if warm else self._predictions.start
        return Forecast(None if planned is None else planned + loads, expected + loads)

    def _update(self, ended: tuple[Trial, Outcome] | None = None) -> None:
        running = tuple(run for run in self._running.values() if run.heard)
        if self._interrupted and not self._announced:
            self._announced = True
            trials = f"{len(running)} running trial{'s' * (len(running) != 1)}"
            self._say(
                f"stopping after the current step of {trials}; the same command resumes from there "
                "(Ctrl-C again: stop at once)"
            )
        shares = [(run, _share(run, run.step) - _share(run, run.resumed_from)) for run in running]
        now = sum(self._cost(run.trial) * share for run, share in shares)
        self._on_update(
            Snapshot(
                total=len(self.trials),
                counts={state: n for state, n in self._counts.items() if n},
                cost_total=self._cost_total,
                cost_done=self._cost_done + now,
                cost_this_run=self._cost_this_run + now,
                seconds=time.monotonic() - self._started,
                running=running,
                predicted=self._predicted,
                tokens_this_run=self._tokens_this_run + sum(run.trial.cost * share for run, share in shares),
                waiting=self._waiting,
                ended=ended,
            )
        )


def _share(run: Running, step: int) -> float:
    """Return the share of a trial's work that is done after a step."""
    return min(1.0, step / run.trial.steps) if run.trial.steps else 0.0
