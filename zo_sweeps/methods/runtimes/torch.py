"""PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zo_sweeps.methods.runtime import Runtime

if TYPE_CHECKING:
    from zo_sweeps.methods.trial_config import TrialConfig


@dataclass(frozen=True)
class Torch(Runtime):
    """PyTorch, on the CPU or a GPU of the node; it runs every member of every axis."""

    def runner(self, config: TrialConfig, away: bool) -> str:
        return config.method.kind.runner
