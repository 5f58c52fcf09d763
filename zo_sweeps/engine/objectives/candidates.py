"""Cross-entropy over an example's candidates."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

from zo_sweeps.engine.later import Batch, Tensor, losses
from zo_sweeps.methods.objective import Answers, Objective
from zo_sweeps.methods.task import Task


@dataclass(frozen=True)
class Candidates(Objective):
    """f = mean over examples of -log softmax(s)[gold], with s_c the mean log p of candidate c's answer tokens. MeZO.

    In a regression task the gold candidate is the one with the nearest value.
    """

    examples = (
        # s = -1, -2, and -1, -3: the mean over tokens
        (
            (Answers(((-1.0,), (-2.0,)), 0), Answers(((-1.0,), (-4.0, -2.0)), 1)),
            (log(1 + exp(-1)) + log(1 + exp(2))) / 2,
        ),
    )

    def fits(self, task: Task) -> str:
        return "it chooses between options, and the task has none" if task.kind.generates else ""

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return losses.candidates(logprobs, batch)

    def of_scores(self, scores: Tensor, gold: Tensor) -> Tensor:
        return losses.cross_entropy(scores, gold)
