"""Mean length of generated texts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from zo_sweeps.methods.metric import Metric, Of, same_length


@dataclass(frozen=True)
class Length(Metric):
    """Mean number of characters of the rewarded texts."""

    display: ClassVar[str] = "length"
    of: ClassVar[Of] = Of.REWARDS
    unit: ClassVar[str] = ""
    unit_size: ClassVar[float] = 1.0
    better: ClassVar[Literal["lower"]] = "lower"
    examples = (([[1.0, 0.0], [0.5, 0.25]], [["", "abc"], ["de", "f"]], 3 / 2),)

    def compute(self, predictions: Sequence[Sequence[float]], references: Sequence[Sequence[str]]) -> float:
        same_length(predictions, references)
        return statistics.fmean(len(text) for texts in references for text in texts)
