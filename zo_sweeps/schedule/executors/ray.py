"""Trials in Ray actors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.executor import Executor

if TYPE_CHECKING:
    from zo_sweeps.schedule.ray_backend import RayBackend


@dataclass(frozen=True)
class Ray(Executor):
    """Ray actors: one warm process per slot, on a new cluster on this machine or on the one at `cluster.address`."""

    priority: int = option(
        0, "among the sweeps of a cluster: free slots go to the highest first; equal ones share", kw_only=True
    )

    def build(self, state_dir: Path, address: str | None) -> RayBackend:
        from zo_sweeps.schedule.ray_backend import RayBackend

        return RayBackend(state_dir, address=address, options=self, priority=self.priority)
