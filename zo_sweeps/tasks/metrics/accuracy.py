"""Share of right labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.metric import Metric, same_length


@dataclass(frozen=True)
class Accuracy(Metric):
    """Share of the rows whose predicted label is right."""

    display: ClassVar[str] = "accuracy"
    share_right: ClassVar[bool] = True
    examples = (([0, 1, 1, 0], [0, 1, 0, 0], 3 / 4),)

    def compute(self, predictions: Sequence[int], references: Sequence[int]) -> float:
        same_length(predictions, references)
        return sum(p == g for p, g in zip(predictions, references, strict=True)) / len(references)
