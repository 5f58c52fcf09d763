"""Accuracy of a minibatch, as a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.later import Batch, Tensor, losses
from zo_sweeps.methods.metric import Of
from zo_sweeps.methods.objective import Answers, Objective
from zo_sweeps.methods.task import Task


@dataclass(frozen=True)
class Accuracy(Objective):
    """f = 1 - the share of examples where a right candidate has the highest mean log-probability. MeZO, section 3.3.

    Any of several right candidates counts, as in evaluation. Ties go to the first candidate.
    """

    examples = (((Answers(((-1.0,), (-2.0,)), 0), Answers(((-1.0,), (-4.0, -2.0)), 1)), 1 / 2),)
    differentiable: ClassVar[bool] = False

    def fits(self, task: Task) -> str:
        return "" if task.kind.predicts is Of.LABELS else "it counts correct labels, and the task predicts none"

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        chosen = losses.candidate_scores(logprobs, batch).argmax(dim=2)  # [P, B]
        right = batch.right.expand(len(chosen), -1, -1).gather(2, chosen.unsqueeze(2))
        return 1 - right.squeeze(2).float().mean(dim=1)
