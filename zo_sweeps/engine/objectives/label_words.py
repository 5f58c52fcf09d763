"""Cross-entropy over label words at the mask of a masked model."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import ClassVar

from zo_sweeps.engine.later import Batch, Tensor, losses
from zo_sweeps.methods.objective import Answers, Objective
from zo_sweeps.methods.task import Task


@dataclass(frozen=True)
class LabelWords(Objective):
    """f = mean over examples of -log softmax(s)[gold], with s_c the logit of label word c at the mask.

    Source: LM-BFF (Gao et al., 2021); MeZO's RoBERTa part.
    """

    examples = (
        ((Answers(((3.0,), (1.0,)), 0), Answers(((0.0,), (3.0,)), 1)), (log(1 + exp(-2)) + log(1 + exp(-3))) / 2),
    )
    masked: ClassVar[bool] = True

    def fits(self, task: Task) -> str:
        if task.kind.generates or task.kind.own_options:
            return "the loss 'label_words' supports classification and regression only"
        return ""

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return losses.candidates(logprobs, batch)  # of one token each: the normaliser over the vocabulary cancels
