"""Spearman correlation of predicted numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.tasks.metrics.pearson import Pearson


@dataclass(frozen=True)
class Spearman(Pearson):
    """Spearman correlation, that of the ranks; otherwise as Pearson's. GLUE's second metric for STS-B."""

    display: ClassVar[str] = "Spearman correlation"
    statistic: ClassVar[str] = "spearmanr"
    examples = (([1.0, 2.0, 9.0], [1.0, 3.0, 2.0], 1 / 2),)
