"""The base class of Pearson's and Spearman's correlation. Not a member of the axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.metric import Metric, Of, same_length


@dataclass(frozen=True)
class Correlation(Metric):
    """A correlation of predicted and right numbers; 0 if either list is constant, as it is then undefined."""

    of: ClassVar[Of] = Of.SCORES
    unit: ClassVar[str] = ""
    unit_size: ClassVar[float] = 1.0
    digits: ClassVar[int] = 3

    def compute(self, predictions: Sequence[float], references: Sequence[float]) -> float:
        same_length(predictions, references)
        if len(set(predictions)) == 1 or len(set(references)) == 1:
            return 0.0
        return self.statistic(predictions, references)

    def statistic(self, predictions: Sequence[float], references: Sequence[float]) -> float:
        """Return the correlation of two lists that both vary."""
        raise NotImplementedError
