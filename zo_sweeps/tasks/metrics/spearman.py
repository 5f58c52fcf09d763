"""Spearman correlation of predicted numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.tasks.metrics._correlation import Correlation


@dataclass(frozen=True)
class Spearman(Correlation):
    """Spearman correlation, computed by scipy. GLUE's second metric for STS-B."""

    display: ClassVar[str] = "Spearman correlation"
    examples = (([1.0, 2.0, 9.0], [1.0, 3.0, 2.0], 1 / 2),)

    def statistic(self, predictions: Sequence[float], references: Sequence[float]) -> float:
        from scipy.stats import spearmanr

        return float(spearmanr(predictions, references).statistic)
