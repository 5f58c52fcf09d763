"""Slots that only report: a `Backend` whose trials take no process, to measure what the driver itself does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from zo_sweeps.core.events import End, Event, Start, Steps
from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.schedule.backend import NO_SLOT, WARM, Deliver, Finished, Progress


class SimulatedSlots:
    """So many slots, of whose trials each reports one step per `poll`; after its last step a trial is finished.

    See `zo_sweeps.schedule.backend.Backend` for the methods.

    Args:
        around: called with the deliveries of one `poll`, which it makes.
    """

    grows = False

    def __init__(self, slots: int, around: Callable[[Iterator[None]], None]) -> None:
        self._slots, self._around = slots, around
        self._running: dict[str, tuple[Trial, int, int]] = {}  # trial_id -> trial, attempt, steps done

    def start(self, deliver: Deliver, trials: int) -> None:
        self._deliver = deliver

    def refusal(self, trial: Trial) -> str:
        return ""

    def held_up(self) -> str:
        return ""

    def fit(self, trial: Trial) -> int:
        return WARM if len(self._running) < self._slots else NO_SLOT

    def submit(self, trial: Trial, journal: list[Event], attempt: int) -> str:
        self._running[trial.trial_id] = (trial, attempt, 0)
        return "simulated"

    def poll(self, timeout: float, left: int) -> None:
        self._around(self._reports())

    def cancel_all(self) -> None:
        self._running.clear()

    def shutdown(self) -> None:
        self._running.clear()

    def describe(self) -> str:
        return f"{self._slots} simulated slots"

    def _reports(self) -> Iterator[None]:
        """Deliver a report of every running trial; yield after each."""
        for trial_id, (trial, attempt, done) in list(self._running.items()):
            if done < trial.steps:
                first: list[Event] = [] if done else [Start(attempt=attempt, device={}, versions={}, resumed_from=0)]
                step = Steps(first=done + 1, losses=(1.0,), coefs=((0.0,),), seconds=0.1, tokens=1)
                self._running[trial_id] = (trial, attempt, done + 1)
                self._deliver(Progress(trial_id, attempt, [*first, step]))
            else:
                del self._running[trial_id]
                outcome = Outcome(trial_id, TrialState.SUCCEEDED, {"wall_seconds": 0.1 * done}, steps_done=done)
                self._deliver(Progress(trial_id, attempt, [End(outcome=outcome)]))
                self._deliver(Finished(trial_id, attempt, outcome))
            yield
