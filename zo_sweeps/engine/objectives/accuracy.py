"""Accuracy of a minibatch, as a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.methods.metric import Of
from zo_sweeps.methods.objective import Answers, Objective

if TYPE_CHECKING:
    from torch import Tensor

    from zo_sweeps.engine.batch import Batch
    from zo_sweeps.methods.task import Task


@dataclass(frozen=True)
class Accuracy(Objective):
    """The objective f = 1 - the share of examples where a right candidate scores highest. MeZO, section 3.3."""

    examples = (((Answers(((-1.0,), (-2.0,)), 0), Answers(((-1.0,), (-4.0, -2.0)), 1)), 1 / 2),)
    differentiable: ClassVar[bool] = False

    def fits(self, task: Task) -> str:
        return "" if task.kind.predicts is Of.LABELS else "it counts correct labels, and the task predicts none"

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        from zo_sweeps.engine import losses

        return losses.accuracy(logprobs, batch)
