"""What a sweep says about itself: while it runs (Snapshot) and when it is over (Summary)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zo_sweeps.core.trial import Outcome, Trial, TrialState

SETTLED_SECONDS = 600.0


@dataclass
class Running:
    """An attempt in flight. `resumed_from` and `step` count optimisation steps."""

    trial: Trial
    attempt: int
    node: str
    resumed_from: int
    step: int
    since: float  # time.monotonic()


@dataclass(frozen=True)
class Snapshot:
    """Where the sweep stands, for displays. Costs are in the unit of `Trial.cost`.

    Attributes:
        total: trials in the sweep.
        counts: trials by state, those of earlier runs of the command included.
        cost_total, cost_done: over all trials; done counts the steps of unfinished trials too.
        cost_this_run, seconds: what this run has worked off, and in what time: the rate for the ETA.
        running: the attempts in flight.
        waiting: reason -> number of trials that no node can take now.
        ended: the trial whose end brought this snapshot about, if one did.
    """

    total: int
    counts: Mapping[TrialState, int]
    cost_total: float
    cost_done: float
    cost_this_run: float
    seconds: float
    running: tuple[Running, ...]
    waiting: Mapping[str, int] = field(default_factory=dict)
    ended: tuple[Trial, Outcome] | None = None

    @property
    def results(self) -> int:
        return sum(n for state, n in self.counts.items() if state.is_result)

    @property
    def eta_seconds(self) -> float | None:
        """Seconds to go at the rate of this run; None before there is a rate.

        The first trials load models and have few steps: their rate is no rate before it is 2 % of the work or is old.
        """
        left = self.cost_total - self.cost_done
        if self.cost_this_run <= 0 or (self.cost_this_run < 0.02 * left and self.seconds < SETTLED_SECONDS):
            return None
        return left * self.seconds / self.cost_this_run


@dataclass(frozen=True)
class Summary:
    """What a call of `Sweep.run` did.

    Attributes:
        counts: the trials of the sweep by state, now.
        already_done: trials with a result before it began.
        ran: trials it brought to a terminal state (results found in a journal only included).
        interrupted: Ctrl-C or SIGTERM ended it.
        stopped: why it gave up before the end, if it did.
        waiting: reason -> number of trials that no node can take.
    """

    counts: Mapping[TrialState, int]
    already_done: int
    ran: int
    interrupted: bool
    stopped: str = ""
    waiting: Mapping[str, int] = field(default_factory=dict)
