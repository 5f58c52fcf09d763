"""Perplexity of the right answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from zo_sweeps.methods.metric import Metric, Of, same_length


@dataclass(frozen=True)
class Perplexity(Metric):
    """exp(-(sum over right answers of log p) / (sum of their tokens)), over the whole vocabulary; lower is better."""

    display: ClassVar[str] = "perplexity"
    of: ClassVar[Of] = Of.LOSSES
    unit: ClassVar[str] = ""
    unit_size: ClassVar[float] = 1.0
    digits: ClassVar[int] = 2
    better: ClassVar[Literal["higher", "lower"]] = "lower"
    examples = (([1.0, 3.0], [2, 6], math.exp(4 / 8)),)

    def compute(self, predictions: Sequence[float], references: Sequence[int]) -> float:
        same_length(predictions, references)
        mean = math.fsum(predictions) / sum(references)
        return math.exp(mean) if mean < 700 else math.inf
