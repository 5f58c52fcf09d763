"""The status of a sweep: while it runs (Snapshot) and when it is over (Summary)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zo_sweeps.core.trial import Event, Outcome, Trial, TrialState

SETTLED_SECONDS = 600.0


@dataclass
class Running:
    """An attempt in flight. `resumed_from` and `step` count optimisation steps; `dev` is its last `eval` event."""

    trial: Trial
    attempt: int
    node: str
    resumed_from: int
    step: int
    since: float  # time.monotonic()
    dev: Event | None = None
    heard: bool = False  # its process has reported; before, it may still wait for its turn on a node


@dataclass(frozen=True)
class Snapshot:
    """The progress of a sweep, for displays. Costs are predicted seconds, or `Trial.cost` if a trial has no prediction.

    Attributes:
        total: trials in the sweep.
        counts: trials by state, including results of earlier runs of the command.
        cost_total, cost_done: over all trials; done counts the steps of unfinished trials too.
        cost_this_run, seconds: cost done by this run, and its time: the rate for the ETA.
        predicted: whether costs are predicted seconds.
        tokens_this_run: forwarded tokens of this run.
        running: the attempts whose processes have reported.
        waiting: reason -> number of trials that no node can take now.
        ended: the trial whose end caused this snapshot, if any.
    """

    total: int
    counts: Mapping[TrialState, int]
    cost_total: float
    cost_done: float
    cost_this_run: float
    seconds: float
    running: tuple[Running, ...]
    predicted: bool = False
    tokens_this_run: float = 0.0
    waiting: Mapping[str, int] = field(default_factory=dict)
    ended: tuple[Trial, Outcome] | None = None

    @property
    def results(self) -> int:
        return sum(n for state, n in self.counts.items() if state.is_result)

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


@dataclass(frozen=True)
class Summary:
    """The result of a call of `Sweep.run`.

    Attributes:
        counts: the trials of the sweep by state, now.
        already_done: trials with a result before it began.
        ran: trials it brought to a terminal state (including results that only a journal held).
        interrupted: whether Ctrl-C or SIGTERM ended it.
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
