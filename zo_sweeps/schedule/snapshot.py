"""The status of a sweep: while it runs (Snapshot; in a file for other processes) and when it is over (Summary)."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from zo_sweeps.core.document import key, to_text
from zo_sweeps.core.events import Event, ScoredDev, Steps
from zo_sweeps.core.files import replace_text
from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.schedule.observer import Observer

if TYPE_CHECKING:
    from zo_sweeps.schedule.prediction import TimePredictions
    from zo_sweeps.schedule.sweep import Sweep


SETTLED_SECONDS = 600.0
STALLED_SECONDS = 120.0  # of silence, at least
STALLED_TIMES = 10  # as long as a step or an evaluation took
UNTIMED_SECONDS = 600.0  # the same, where neither is known: a model is loaded, or test is scored


@dataclass
class Running:
    """An attempt in flight. `resumed_from` and `step` count optimisation steps; `dev` has its last scores."""

    trial: Trial
    attempt: int = 0
    node: str = ""
    resumed_from: int = 0
    step: int = 0
    since: float = field(default_factory=time.monotonic)
    dev: ScoredDev | None = None
    reported: float = field(default_factory=time.monotonic)  # when its process did last
    predicted: float | None = None  # seconds of the whole trial
    counted: float = 0.0  # the share of its work that the progress of the sweep has

    def saw(self, events: Sequence[Event]) -> None:
        """Take new events."""
        self.reported = time.monotonic()
        for event in events:
            if isinstance(event, Steps):
                self.step = event.last
            elif isinstance(event, ScoredDev):
                self.dev = event

    @property
    def stalled(self) -> bool:
        """Whether it is silent for longer than its steps and evaluations so far, or its prediction, explain."""
        predicted = self.predicted or 0.0
        done, silent = self.step - self.resumed_from, time.monotonic() - self.reported
        step = (self.reported - self.since) / done if done else predicted / max(1, self.trial.steps)
        untimed = max(UNTIMED_SECONDS, predicted) if not done or self.step == self.trial.steps else 0.0
        evaluation = self.dev.seconds if self.dev else 0.0
        return silent > max(STALLED_SECONDS, STALLED_TIMES * max(step, evaluation), untimed)

    def share(self, step: int) -> float:
        """Return the share of the trial's work that is done after a step."""
        return min(1.0, step / self.trial.steps) if self.trial.steps else 0.0


@dataclass(frozen=True)
class Snapshot:
    """The progress of a sweep, for displays. Costs are predicted seconds, or `Trial.cost` if a trial has no prediction.

    Cost to make: the same however many trials run; a display that shows `running` walks it.

    Attributes:
        counts: trials by state, including results of earlier runs of the command.
        cost_total, cost_done: over all trials; done counts the steps of unfinished trials too.
        cost_this_run, seconds: cost done by this run, and its time: the rate for the ETA.
        running: the attempts whose processes have reported, as of now.
        predicted: whether costs are predicted seconds.
        tokens_this_run: forwarded tokens of this run.
        waiting: reason -> number of trials that no node can take now.
        ended: the trial whose end caused this snapshot, if any.
    """

    total: int
    counts: Mapping[TrialState, int]
    cost_total: float
    cost_done: float
    cost_this_run: float
    seconds: float
    running: Collection[Running]
    predicted: bool = False
    tokens_this_run: float = 0.0
    waiting: Mapping[str, int] = field(default_factory=dict)
    ended: tuple[Trial, Outcome] | None = None

    @property
    def eta_seconds(self) -> float | None:
        """Seconds to go at this run's rate; None while it is unknown.

        The first trials load models and have few steps, so the rate counts from when 2 % of the remaining work is done
        or 10 minutes have passed. Before that, predicted seconds are divided by the trials that run.
        """
        left = max(0.0, self.cost_total - self.cost_done)  # sums of floats may end a little above their total
        if self.cost_this_run <= 0 or (self.cost_this_run < 0.02 * left and self.seconds < SETTLED_SECONDS):
            return left / len(self.running) if self.predicted and self.running else None
        return left * self.seconds / self.cost_this_run


def expected(trials: Iterable[Trial]) -> dict[str, float]:
    """Return trial id -> the share of it that is expected to run: of a search's settings, one at each further seed."""
    searches = {trial.trial_id: _search(trial.config) for trial in trials}
    settings = Counter(searches.values())
    return {i: 1 / settings[search] if search else 1.0 for i, search in searches.items()}


def _search(config: Any) -> tuple[str, int] | None:
    """Return what the trials of a search at one further seed have in common; None for any other trial."""
    confirms = isinstance(config, TrialConfig) and config.train.confirms
    return (config.train.halving_among, config.seed) if confirms else None


class Watch(Observer):
    """Snapshots for displays: twice per second, after events, and for each trial that ends.

    The sums are kept, each report adding what it brought, so that a report costs the same however many trials run.
    Work is in seconds as planned; in forwarded tokens if those of some trial are unknown.

    Args:
        predictions: of the trials' seconds; they learn from each trial that ends.
        on_update: gets the snapshots.
    """

    def __init__(self, on_update: Callable[[Snapshot], None], predictions: TimePredictions | None = None) -> None:
        self._on_update, self._predictions = on_update, predictions
        self._since: float | None = None
        self._done = self._this_run = self._tokens = 0.0

    def begins(self, sweep: Sweep) -> None:
        self._sweep, trials = sweep, sweep.trials
        seconds = {i: self._predictions.seconds(trial) if self._predictions else None for i, trial in trials.items()}
        self._seconds = planned = {i: one for i, one in seconds.items() if one is not None}
        self._predicted = len(planned) == len(trials)
        self._costs = planned if self._predicted else {i: trial.cost for i, trial in trials.items()}
        share = expected(trial for i, trial in trials.items() if i in sweep.queue.held)
        self._total = sum(cost * share.get(i, 1.0) for i, cost in self._costs.items())
        self._done = sum(cost for i, cost in self._costs.items() if i not in share)

    def started(self, run: Running) -> None:
        self._since = self._since or time.monotonic()
        run.predicted, run.counted = self._seconds.get(run.trial.trial_id), run.share(run.resumed_from)
        self._done += self._costs[run.trial.trial_id] * run.counted

    def saw(self, run: Running, events: Sequence[Event]) -> None:
        self._count(run, run.share(run.step))
        self._show()

    def ended(self, run: Running, outcome: Outcome, again: bool) -> None:
        trial = run.trial
        if self._predictions and not run.resumed_from:
            self._predictions.learn(trial, outcome)
        goes_on = again or outcome.state in (TrialState.PAUSED, TrialState.CANCELLED)
        if run.attempt:  # else its work was counted when it paused
            self._count(run, run.share(run.step) if goes_on else 1.0)
        if not outcome.never_ran:
            self._done += self._costs[trial.trial_id] * ((0.0 if goes_on else 1.0) - run.counted)
        self._show(None if goes_on else (trial, outcome))

    def looks(self, last: bool = False) -> None:
        self._show()

    def _count(self, run: Running, share: float) -> None:
        """Count the work of this run up to a share of a trial."""
        more, run.counted = share - run.counted, share
        self._done += self._costs[run.trial.trial_id] * more
        self._this_run += self._costs[run.trial.trial_id] * more
        self._tokens += run.trial.cost * more

    def _show(self, ended: tuple[Trial, Outcome] | None = None) -> None:
        sweep, now = self._sweep, time.monotonic()
        self._on_update(
            Snapshot(
                total=len(sweep.trials),
                counts={state: n for state, n in sweep.counts.items() if n},
                cost_total=self._total,
                cost_done=self._done,
                cost_this_run=self._this_run,
                seconds=now - (self._since or now),
                running=sweep.heard.values(),
                predicted=self._predicted,
                tokens_this_run=self._tokens,
                waiting=sweep.waiting,
                ended=ended,
            )
        )


@dataclass(frozen=True)
class Summary:
    """The result of a call of `Sweep.run`.

    Attributes:
        already_done: trials with a result before it began.
        ran: trials it brought to a terminal state (including results that only a journal held).
        stopped: why it gave up before the end; "" if it did not.
        waiting: reason -> number of trials that no node can take.
        stopped_rows: row -> why its other trials were not started.
        over: the cap of the budget that stopped it, and what was spent; "" if none did.
    """

    counts: Mapping[TrialState, int]
    already_done: int
    ran: int
    interrupted: bool
    stopped: str = ""
    waiting: Mapping[str, int] = field(default_factory=dict)
    stopped_rows: Mapping[str, str] = field(default_factory=dict)
    over: str = ""


FILE = "live.json"
EVERY_SECONDS = 1.0


@dataclass(frozen=True)
class LiveRun:
    """A trial that runs now."""

    trial_id: str = key("its id")
    label: str = key("its printed name")
    node: str = key("where it runs")
    attempt: int = key("1 for the first")
    step: int = key("steps done")
    steps: int = key("steps in all; 0: it has none")
    seconds: float = key("since it began")
    silent: float = key("since it last reported")
    stalled: bool = key("whether that is ten times as long as its steps and evaluations, or its prediction, explain")


class Live(TypedDict):
    """A sweep's status as plain JSON."""

    time: float  # Unix seconds, when it was written
    running: list[LiveRun]
    waiting: dict[str, int]  # reason -> trials
    eta_seconds: float | None
    tokens_per_second: float | None  # forwarded, mean since the driver began


class LiveFile:
    """A file in `state_dir` with the last snapshot, written at most once per second; write errors are ignored."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE
        self._written = 0.0
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)  # an earlier driver's

    def update(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        if now - self._written < EVERY_SECONDS:
            return
        self._written = now
        running = [
            LiveRun(
                trial_id=run.trial.trial_id,
                label=run.trial.label or run.trial.trial_id,
                node=run.node,
                attempt=run.attempt,
                step=run.step,
                steps=run.trial.steps,
                seconds=round(now - run.since, 1),
                silent=round(now - run.reported, 1),
                stalled=run.stalled,
            )
            for run in snapshot.running
        ]
        data: Live = {
            "time": time.time(),
            "running": running,
            "waiting": dict(snapshot.waiting),
            "eta_seconds": snapshot.eta_seconds,
            "tokens_per_second": snapshot.tokens_this_run / snapshot.seconds if snapshot.seconds else None,
        }
        with contextlib.suppress(OSError):
            replace_text(self._path, to_text(data))


def read_live(state_dir: Path) -> Live | None:
    """Return the last status that a driver of `state_dir` wrote; None if none. `driver_of` tells if it still runs."""
    try:
        status = json.loads((state_dir / FILE).read_text())
        status["running"] = [LiveRun(**run) for run in status["running"]]
    except (OSError, ValueError, KeyError, TypeError):  # TypeError: of a driver of another version
        return None
    live: Live = status
    return live
