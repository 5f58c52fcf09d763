"""Pearson correlation of predicted numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.tasks.metrics._correlation import Correlation


@dataclass(frozen=True)
class Pearson(Correlation):
    """Pearson correlation, computed by scipy. GLUE's metric for STS-B."""

    display: ClassVar[str] = "Pearson correlation"
    examples = (([1.0, 2.0, 4.0], [1.0, 3.0, 2.0], 3 / 84**0.5),)

    def statistic(self, predictions: Sequence[float], references: Sequence[float]) -> float:
        from scipy.stats import pearsonr

        return float(pearsonr(predictions, references).statistic)
