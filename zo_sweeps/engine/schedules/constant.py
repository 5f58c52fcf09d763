"""A constant learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.methods.schedule import Schedule


@dataclass(frozen=True)
class Constant(Schedule):
    """lr_t = lr."""

    def rate(self, lr: float, step: int, steps: int) -> float:
        return lr
