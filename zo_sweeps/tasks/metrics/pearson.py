"""Pearson correlation of predicted numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.metric import Metric, Of, same_length


@dataclass(frozen=True)
class Pearson(Metric):
    """Pearson correlation, computed by scipy; 0 if either list is constant, as it is then undefined.

    GLUE's metric for STS-B.
    """

    display: ClassVar[str] = "Pearson correlation"
    of: ClassVar[Of] = Of.SCORES
    unit: ClassVar[str] = ""
    unit_size: ClassVar[float] = 1.0
    digits: ClassVar[int] = 3
    statistic: ClassVar[str] = "pearsonr"  # of scipy.stats
    examples = (([1.0, 2.0, 4.0], [1.0, 3.0, 2.0], 3 / 84**0.5),)

    def compute(self, predictions: Sequence[float], references: Sequence[float]) -> float:
        from scipy import stats

        same_length(predictions, references)
        if len(set(predictions)) == 1 or len(set(references)) == 1:
            return 0.0
        return float(getattr(stats, self.statistic)(predictions, references).statistic)
