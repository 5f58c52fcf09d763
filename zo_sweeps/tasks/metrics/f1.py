"""F1 of one of two labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.metric import Metric, same_length
from zo_sweeps.methods.task import Task


@dataclass(frozen=True)
class F1(Metric):
    """F1 = 2PR / (P + R) of one of two labels, with P its precision and R its recall; 0 if neither list has it.

    Computed by scikit-learn.
    """

    display: ClassVar[str] = "F1"
    classes: ClassVar[bool] = True
    examples = (([1, 1, 1, 0, 0], [1, 0, 0, 1, 0], 2 / 5),)  # P = 1/3, R = 1/2

    positive: int = option(1, "index of the scored label among the task's", least=0, most=1)

    def fits(self, task: Task) -> str:
        several = any(len(dialect.options) != 2 for dialect in task.dialects.values())
        return super().fits(task) or ("it needs exactly two labels; use f1_macro" if several else "")

    def compute(self, predictions: Sequence[int], references: Sequence[int]) -> float:
        from sklearn.metrics import f1_score

        same_length(predictions, references)
        return float(f1_score(references, predictions, labels=[self.positive], average="macro", zero_division=0.0))
