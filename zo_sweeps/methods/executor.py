"""The axis `executor`: where attempts at trials run, how many at a time, and how often one is repeated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from zo_sweeps.methods.definition import Definition, option


@dataclass(frozen=True)
class Executor(Definition):
    """Where attempts run. It belongs to the run: a trial's configuration and its trial_id know nothing of it."""

    axis: ClassVar[str] = "executor"

    cpus_per_trial: int = option(1, "CPUs of each process of a trial, and its torch threads", least=1, kw_only=True)
    slots: int | None = option(
        None, "processes at a time; null: as many as the CPUs (GPUs) allow", least=1, kw_only=True
    )
    workers: int = option(
        1,
        "processes that share the q directions of a zeroth-order trial's steps: the same result",
        least=1,
        kw_only=True,
    )
    on_lost_worker: Literal["redo", "drop"] = option(
        "redo",
        "a lost peer's directions: redo: others evaluate them; drop: the step goes on without them, and is tagged",
        kw_only=True,
    )
    worker_patience: float = option(
        60.0,
        "seconds by which a peer may be later than the trial's first process before it counts as lost",
        above=0,
        kw_only=True,
    )
    retries_failed: int = option(1, "further attempts after an error", least=0, kw_only=True)
    retries_lost: int = option(3, "further attempts after a lost process or node", least=0, kw_only=True)

    def build(self, state_dir: Path, address: str | None) -> Any:
        """Return the `zo_sweeps.schedule.backend.Backend` that runs the attempts; nothing is started yet.

        Args:
            state_dir: the sweep's folder.
            address: "host:port" of a standing cluster to join; None: this machine alone.
        """
        raise NotImplementedError
