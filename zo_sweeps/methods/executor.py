"""Keys of the run, part of no trial: the axis `executor`, where and how often attempts run; and the caps of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from zo_sweeps.methods.definition import Checked, Definition, option


@dataclass(frozen=True)
class Executor(Definition):
    """A place where attempts run. It belongs to the run, not to a trial's configuration or trial_id."""

    axis: ClassVar[str] = "executor"
    concurrent: ClassVar[bool] = True  # runs several trials at a time, where there is room
    joins: ClassVar[bool] = True  # runs trials on the nodes of a cluster at `cluster.address`

    cpus_per_trial: int = option(
        1, "CPUs per process of a trial, and its number of torch threads", least=1, kw_only=True
    )
    slots: int | None = option(None, "processes at a time; null: as many as CPUs and GPUs allow", least=1, kw_only=True)
    workers: int = option(
        1,
        "processes that share the q directions of a zeroth-order trial's steps; the result is the same",
        least=1,
        kw_only=True,
    )
    on_lost_worker: Literal["redo", "drop"] = option(
        "redo",
        "directions of a lost peer. redo: others evaluate them; drop: the step continues without them and is tagged",
        kw_only=True,
    )
    worker_patience: float = option(
        60.0,
        "seconds that a trial's first process, done with its own share, waits before a peer counts as lost",
        above=0,
        kw_only=True,
    )
    retries_failed: int = option(1, "retries after an error", least=0, kw_only=True)
    retries_lost: int = option(3, "retries after a lost process or node", least=0, kw_only=True)

    @property
    def threads(self) -> int:
        """The most torch threads at a time that these options ask for by number, on one machine."""
        return max(self.slots or 1, self.workers) * self.cpus_per_trial

    def build(self, state_dir: Path, address: str | None) -> Any:
        """Return the `zo_sweeps.schedule.backend.Backend` that runs the attempts, without starting it.

        Args:
            state_dir: the sweep's folder.
            address: "host:port" of a running cluster to join; None: this machine alone.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Budget(Checked):
    """Caps on a sweep's trials, over all runs of its command. At one of them it stops, and can be resumed."""

    hours: float | None = option(
        None, "wall-clock hours in which any of the sweep's trials runs; null: no cap", above=0, identity=False
    )
    trials: int | None = option(None, "trials, whatever comes of them; null: no cap", least=1, identity=False)
    joules: float | None = option(
        None, "energy of the trials' steps, as their devices report it; null: no cap", above=0, identity=False
    )
    partial: bool = option(
        False, "true: begin a sweep that is predicted to exceed a cap, and stop it there", identity=False
    )

    @property
    def has_cap(self) -> bool:
        """Whether there is anything to hold."""
        return any(cap is not None for cap in (self.hours, self.trials, self.joules))
