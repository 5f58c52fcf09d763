"""What follows a sweep: MLflow's mirror, other trackers (`tracking.also`), hooks (`on`).

The package of the extra `[tracking]` has them, and offers them as the entry point `tracking` of the group
`zo_sweeps.part`. Without it a sweep keeps its journals and its book, from which `sync` makes every copy later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.errors import NotInstalledError
from zo_sweeps.methods import registry
from zo_sweeps.record.sweep_book import SweepBook, SweepInfo

if TYPE_CHECKING:
    from zo_sweeps.config.schema import OnConfig, TrackingConfig
    from zo_sweeps.core.events import FinishedSweep
    from zo_sweeps.core.trial import Trial
    from zo_sweeps.schedule.snapshot import Snapshot

Say = Callable[[str], None]


class Mirror:
    """A sweep's copy in MLflow. This base class keeps the sweep's book, and copies nothing."""

    place = ""  # of the copy: a server's address, or a folder

    def __init__(self, experiment: str, sweep: SweepInfo, state_dir: Path) -> None:
        self._book = SweepBook(state_dir, experiment, sweep)
        self._final: FinishedSweep | None = None  # the end, until it is sent

    def register(self, trial: Trial) -> None:
        """Register a trial, and queue the events that its journal already holds."""
        self._book.add(trial)

    def notify(self, trial_id: str) -> None:
        """Queue a registered trial whose journal has grown. Cost: microseconds."""

    def finish(self, table_markdown: str, files: Mapping[str, str], metrics: Mapping[str, float], status: str) -> None:
        """End the parent run once the queue is empty: FINISHED, FAILED, or KILLED for a sweep that was interrupted."""
        self._final = self._book.finish({"table.md": table_markdown, **files}, metrics, status)

    def drain(self, timeout: float) -> int:
        """Wait until everything is sent, at most `timeout` seconds; return the number of trials still queued."""
        return 0

    def close(self) -> None:
        """Send no more."""
        self._book.close()


class Told(AbstractContextManager["Told"]):
    """The user's hooks around a run of a sweep. This base class calls none."""

    def update(self, snapshot: Snapshot) -> None:
        """Note how far the sweep is."""

    def ended(self, status: str, counts: Mapping[Any, int]) -> None:
        """Note the end of the sweep: FINISHED, FAILED or KILLED."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Call the hook of the end."""


class Tracking:
    """What follows a sweep. This base class is what there is without the package."""

    notes: Sequence[str] = (
        "no MLflow (pip install 'zo-sweeps[tracking]'): journals keep everything, and `python -m zo_sweeps sync` "
        "sends it once that is installed",
    )

    def check(self, config: TrackingConfig) -> None:
        """Raise UserError for a tracker that is named and not known, or whose package is missing."""
        if config.uri or config.also:
            key = "uri" if config.uri else "also"
            fix = f"pip install 'zo-sweeps[{','.join(('tracking', *config.also))}]'"
            raise NotInstalledError(f"tracking.{key}: zo-sweeps-tracking is not installed", fix=fix)

    def check_hooks(self, on: OnConfig) -> None:
        """Raise UserError for a hook that cannot be called, or whose package is missing."""
        for event, hook in vars(on).items():
            if hook is not None:
                fix = "pip install 'zo-sweeps[tracking]'"
                raise NotInstalledError(f"on.{event}: zo-sweeps-tracking is not installed", fix=fix)

    def hooks(self, on: OnConfig, sweep: str, state_dir: Path, say: Say, missing: int) -> Told:
        """Return the hooks of one run; missing: the trials that cannot run here, which the sweep's counts leave out."""
        return Told()

    def mirror(
        self, config: TrackingConfig, experiment: str, sweep: SweepInfo, state_dir: Path, say: Say, patience: float
    ) -> Mirror:
        """Return the MLflow mirror of a sweep: in the state folder's own store unless a server is named.

        An unreachable store is reported after `patience` seconds.
        """
        return Mirror(experiment, sweep, state_dir)

    def others(
        self,
        config: TrackingConfig,
        experiment: str,
        sweep: SweepInfo,
        trials: Sequence[Trial],
        state_dir: Path,
        say: Say,
    ) -> AbstractContextManager[Callable[[str], None]]:
        """Return a context that sends to other trackers; its function says that a trial's journal has grown."""
        return nullcontext(lambda trial_id: None)


def tracking() -> Tracking:
    """Return the trackers of the package, or what there is without it."""
    point = registry.offered("part").get("tracking")
    return registry.load(point)() if point else Tracking()
