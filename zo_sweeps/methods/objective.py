"""The axis `objective`: the function f of a batch that training minimizes.

f is a mean over the terms of a batch: over its examples, or (token losses) over the gold answer tokens of all of them.
The loss of a training step is f of its minibatch, so that a token of a small batch weighs more than one of a large
batch. The dev or test loss is f of the whole split as one batch, whatever forwards it is computed in: the sum of all
terms over their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from zo_sweeps.methods.definition import Definition

if TYPE_CHECKING:
    from torch import Tensor

    from zo_sweeps.methods.task import Task

OWN = "loss"  # value of train.objective that stands for the dialect's own loss


class Answers(NamedTuple):
    """The candidates of an example: log p of each one's answer tokens, and the index of the gold one."""

    logprobs: tuple[tuple[float, ...], ...]
    gold: int


@dataclass(frozen=True)
class Objective(Definition):
    """The function f of a batch at P points, from the answer tokens' log-probabilities or from generated answers."""

    axis: ClassVar[str] = "objective"
    bare: ClassVar[bool] = True
    differentiable: ClassVar[bool] = True  # backpropagation can train it
    generates: ClassVar[bool] = False  # f is `of_texts`, of the answers generated at each point
    masked: ClassVar[bool] = False  # reads label words at a mask: for masked models and prompts with a mask
    gold_only: ClassVar[bool] = False  # runs the forward on right answers only
    # (batch, f), worked out by hand: what the contract tests hold `loss` to, options at their defaults; the batch of
    # one that `generates` is (predictions, references). At least one; each of several examples, with an f that is not
    # 0; where candidates are compared, one whose gold candidate is not the first.
    examples: ClassVar[tuple[tuple[Sequence[Any], float], ...]] = ()

    def fits(self, task: Task) -> str:
        """Return why it cannot be computed for the task; "" if it can."""
        return ""

    def loss(self, logprobs: Tensor, batch: Any) -> Tensor:
        """Return f at P points, [P].

        Args:
            logprobs: log-probabilities of the batch's answer tokens, [P, K]; see `zo_sweeps.engine.losses`.
            batch: the `zo_sweeps.engine.batch.Batch`.
        """
        raise NotImplementedError

    def terms(self, batch: Any) -> int:
        """Return the number of terms that `loss` is the mean of: the batch's examples, if not said otherwise."""
        examples: int = batch.examples
        return examples

    def of_scores(self, scores: Tensor, gold: Tensor) -> Tensor:
        """Return the terms of f, one per example, [P, B], for an exported program: differentiable operations alone.

        Args:
            scores: mean log-probability of each candidate's answer tokens, [P, B, C]; -inf for an empty slot.
            gold: slot of the gold candidate, [P, B].
        """
        raise NotImplementedError

    def mass(self, length: int) -> float:
        """Return the weight of an example's term of `of_scores` in f; `length` is that of its gold answer."""
        return 1.0

    def of_texts(self, predictions: Sequence[Any], references: Sequence[Any]) -> Tensor:
        """Return f of the answers generated at one point, [1].

        Args:
            predictions, references: of each row, as `zo_sweeps.methods.metric.Of` describes them for what the task
                predicts: a text and its accepted answers, or the rewards of its texts and these texts.
        """
        raise NotImplementedError
