"""Mean reward of generated texts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.metric import Metric, Of, same_length


@dataclass(frozen=True)
class Reward(Metric):
    """Mean over the rows of the mean reward of each row's texts."""

    display: ClassVar[str] = "reward"
    of: ClassVar[Of] = Of.REWARDS
    unit: ClassVar[str] = ""
    unit_size: ClassVar[float] = 1.0
    digits: ClassVar[int] = 3
    examples = (([[1.0, 0.0], [0.5, 0.25]], [["a", "b"], ["c", "d"]], 7 / 16),)

    def compute(self, predictions: Sequence[Sequence[float]], references: Sequence[Sequence[str]]) -> float:
        same_length(predictions, references)
        return statistics.fmean(map(statistics.fmean, predictions))
