"""The axis `schedule`: the learning rate as a function of the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.definition import Definition

Rates = Callable[[int], float]  # step, from 1 -> learning rate


@dataclass(frozen=True)
class Schedule(Definition):
    """A learning-rate schedule."""

    axis: ClassVar[str] = "schedule"
    bare: ClassVar[bool] = True

    def rate(self, lr: float, step: int, steps: int) -> float:
        """Return the learning rate of a step.

        Args:
            lr: the learning rate of step 1.
            step: counted from 1.
            steps: number of steps in the whole run.
        """
        raise NotImplementedError

    def over(self, lr: float, steps: int) -> Rates:
        """Return the function step -> learning rate for a run of `steps`."""
        return lambda step: self.rate(lr, step, steps)
