"""Mean F1 over the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.metric import Metric, same_length


@dataclass(frozen=True)
class MacroF1(Metric):
    """Mean of the F1 of all labels that occur in predictions or references. Computed by scikit-learn."""

    display: ClassVar[str] = "macro F1"
    classes: ClassVar[bool] = True
    examples = (([0, 1, 1, 2], [0, 1, 2, 2], (1 + 2 / 3 + 2 / 3) / 3),)

    def compute(self, predictions: Sequence[int], references: Sequence[int]) -> float:
        from sklearn.metrics import f1_score

        same_length(predictions, references)
        return float(f1_score(references, predictions, average="macro", zero_division=0.0))
