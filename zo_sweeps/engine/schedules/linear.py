"""A linearly decreasing learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.methods.schedule import Schedule


@dataclass(frozen=True)
class Linear(Schedule):
    """lr_t = lr * (1 - (t - 1) / steps): from lr at step 1 down to lr / steps at the last."""

    def rate(self, lr: float, step: int, steps: int) -> float:
        return lr * (1 - (step - 1) / steps)
