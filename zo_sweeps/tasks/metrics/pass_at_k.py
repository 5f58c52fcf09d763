"""Share of the prompts that one of k texts solves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import ClassVar

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.metric import Metric, Of, same_length
from zo_sweeps.methods.reward import PASS
from zo_sweeps.methods.task import Task


@dataclass(frozen=True)
class PassAtK(Metric):
    """Mean over the rows of 1 - C(n - c, k) / C(n, k), for n texts of which c have a reward of 1 or more.

    It is unbiased for the probability that one of k texts passes. Source: Chen et al., Evaluating large language models
    trained on code, 2021.
    """

    display: ClassVar[str] = "pass@k"
    of: ClassVar[Of] = Of.REWARDS
    examples = (([[1.0, 0.0, 0.5, 1.1], [0.0, 0.0, 0.0, 0.9]], [["", "", "", ""], ["", "", "", ""]], 5 / 12),)

    k: int = option(2, "texts per prompt, of which one must pass; at most the task's samples", least=1)

    def fits(self, task: Task) -> str:
        few = f"k={self.k}, and the task has {task.kind.samples} texts per prompt; set kind.samples"
        return super().fits(task) or (few if self.k > task.kind.samples else "")

    def compute(self, predictions: Sequence[Sequence[float]], references: Sequence[Sequence[str]]) -> float:
        same_length(predictions, references)
        passed = [(len(row), sum(reward >= PASS for reward in row)) for row in predictions]
        return statistics.fmean(1 - comb(n - c, self.k) / comb(n, self.k) for n, c in passed)
