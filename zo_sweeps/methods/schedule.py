"""The axis `schedule`: how the learning rate goes over the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.methods.definition import Definition

Rates = Callable[[int], float]  # step, from 1 on -> its learning rate


@dataclass(frozen=True)
class Schedule(Definition):
    """The learning rate by step."""

    axis: ClassVar[str] = "schedule"

    def rate(self, lr: float, step: int, steps: int) -> float:
        """Return the learning rate of a step.

        Args:
            lr: the highest rate.
            step: counted from 1. steps: of the whole run.
        """
        raise NotImplementedError

    def over(self, lr: float, steps: int) -> Rates:
        """Return step -> learning rate for a run of `steps`."""
        return lambda step: self.rate(lr, step, steps)

    def to_json(self) -> Any:
        """Return the name alone where there are no options, as it is written."""
        whole = super().to_json()
        return whole if len(whole) > 1 else self.name
