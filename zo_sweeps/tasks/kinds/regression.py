"""Regression: prediction of a real number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.methods.metric import Of
from zo_sweeps.methods.task import Dialect, Task
from zo_sweeps.methods.task_kind import KindExample, TaskKind


@dataclass(frozen=True)
class Regression(TaskKind):
    """Prediction of the expected value over options that stand for numbers.

    y = sum_i p_i v_i, with p = softmax(s), s_i the mean log-probability of option i's answer tokens and v_i its value
    (`labels` of the task, in the order of the options). The label column holds any number. The
    option with the nearest value is trained on; ties go to the first.
    """

    predicts: ClassVar[Of] = Of.SCORES
    examples = (
        KindExample(
            {"text": "Good?", "label": 3.9}, "{{ text }}", (" no", " yes"), "Good?", (" no", " yes"), gold=1,
            labels=(0, 5), value=3.9, scores=(math.log(3) - 7, -7.0), estimate=5 / 4,
        ),  # p = 3/4 and 1/4
    )  # fmt: skip

    def wrong(self, task: Task, dialect: Dialect) -> str:
        for label in task.labels:
            if not _is_number(label):
                return f"label {label!r} of a regression is not a number"
        return super().wrong(task, dialect)

    def problem(self, label: Any, labels: Sequence[Any], column: str) -> str:
        return "" if _is_number(label) else f"label {label!r} is not a finite number"

    def gold(self, label: Any, labels: Sequence[Any]) -> int:
        return min(range(len(labels)), key=lambda i: abs(labels[i] - label))

    def value(self, label: Any) -> float | None:
        return float(label)

    def estimate(self, scores: Sequence[float], labels: Sequence[Any]) -> float:
        highest = max(scores)
        weights = [math.exp(score - highest) for score in scores]
        return math.fsum(w * float(v) for w, v in zip(weights, labels, strict=True)) / math.fsum(weights)


def _is_number(label: Any) -> bool:
    return isinstance(label, (int, float)) and not isinstance(label, bool) and math.isfinite(label)
