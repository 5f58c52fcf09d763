"""The axis `schedule`: how the learning rate goes over the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.methods.definition import Definition


@dataclass(frozen=True)
class Schedule(Definition):
    """The learning rate as a share of the first, by step."""

    axis: ClassVar[str] = "schedule"

    def rate(self, lr: float, step: int, steps: int) -> float:
        """Return the learning rate of a step.

        Args:
            lr: the highest rate.
            step: counted from 1. steps: of the whole run.
        """
        raise NotImplementedError

    def to_json(self) -> Any:
        """Return the name alone where there are no options, as it is written."""
        whole = super().to_json()
        return whole if len(whole) > 1 else self.name
