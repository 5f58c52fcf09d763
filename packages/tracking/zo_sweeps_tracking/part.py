"""The trackers as `zo_sweeps.session.tracking` defines them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from zo_sweeps.config.schema import OnConfig, TrackingConfig
from zo_sweeps.core.trial import Trial
from zo_sweeps.record.sweep_book import SweepInfo
from zo_sweeps.session.tracking import Say, Tracking
from zo_sweeps_tracking import hooks, trackers
from zo_sweeps_tracking.store import MlflowMirror


class SweepTracking(Tracking):
    """MLflow, Weights & Biases, TensorBoard and hooks: see the base class."""

    notes = ()

    def check(self, config: TrackingConfig) -> None:
        trackers.check(config.also)

    def check_hooks(self, on: OnConfig) -> None:
        hooks.check(on)

    def hooks(self, on: OnConfig, sweep: str, state_dir: Path, say: Say, missing: int) -> hooks.Hooks:
        return hooks.Hooks(on, sweep, state_dir, say, missing)

    def mirror(
        self, config: TrackingConfig, experiment: str, sweep: SweepInfo, state_dir: Path, say: Say, patience: float
    ) -> MlflowMirror:
        return MlflowMirror(config.uri, experiment, sweep, state_dir, say=say, patience=patience)

    @contextmanager
    def others(
        self,
        config: TrackingConfig,
        experiment: str,
        sweep: SweepInfo,
        trials: Sequence[Trial],
        state_dir: Path,
        say: Say,
    ) -> Iterator[Callable[[str], None]]:
        with trackers.Trackers(config.also, experiment, sweep, trials, state_dir, say) as others:
            yield others.notify
