"""Learning rates: step number (1-based) -> lr."""

from __future__ import annotations

from collections.abc import Callable

Schedule = Callable[[int], float]


def constant(lr: float, steps: int) -> Schedule:
    """lr_t = lr."""
    return lambda step: lr


def linear(lr: float, steps: int) -> Schedule:
    """lr_t = lr * (1 - (t - 1) / steps): from lr at step 1 down to lr / steps at the last."""
    return lambda step: lr * (1 - (step - 1) / steps)
