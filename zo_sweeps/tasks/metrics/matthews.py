"""Matthews correlation of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.metric import Metric, same_length


@dataclass(frozen=True)
class Matthews(Metric):
    """Matthews correlation coefficient of predicted and right labels; 0 if either list has only one label.

    Computed by scikit-learn. GLUE's metric for CoLA.
    """

    display: ClassVar[str] = "Matthews correlation"
    classes: ClassVar[bool] = True
    examples = (([1, 1, 1, 0], [1, 1, 0, 0], 1 / 3**0.5),)
    unit: ClassVar[str] = ""
    unit_size: ClassVar[float] = 1.0
    digits: ClassVar[int] = 3

    def compute(self, predictions: Sequence[int], references: Sequence[int]) -> float:
        from sklearn.metrics import matthews_corrcoef

        same_length(predictions, references)
        return float(matthews_corrcoef(references, predictions))
