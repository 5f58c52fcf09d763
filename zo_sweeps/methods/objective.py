"""The axis `objective`: the function f of a batch that training lowers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from zo_sweeps.methods.definition import Definition

if TYPE_CHECKING:
    from torch import Tensor

    from zo_sweeps.methods.task import Task

OWN = "loss"  # the name in train.objective of the objective that the task's wording is trained with


@dataclass(frozen=True)
class Objective(Definition):
    """f of a batch at P points: of the answer tokens' log-probabilities, or of generated answers."""

    axis: ClassVar[str] = "objective"
    differentiable: ClassVar[bool] = True  # backpropagation can train it
    generates: ClassVar[bool] = False  # f is `of_texts`: answers are generated, at one point per forward
    masked: ClassVar[bool] = False  # reads label words at a mask: for masked models and prompts with a mask
    gold_only: ClassVar[bool] = False  # only the right answers are forwarded

    def fits(self, task: Task) -> str:
        """Return why it cannot be computed for the task; "" where it can."""
        return ""

    def loss(self, logprobs: Tensor, batch: Any) -> Tensor:
        """Return f at P points, [P].

        Args:
            logprobs: log-probabilities of the batch's answer tokens, [P, K]; see `zo_sweeps.engine.losses`.
            batch: the `zo_sweeps.engine.batch.Batch`.
        """
        raise NotImplementedError

    def of_texts(self, texts: Sequence[str], references: Sequence[Sequence[str]]) -> Tensor:
        """Return f of the answers generated at one point, [1].

        Args:
            references: the accepted answers of each.
        """
        raise NotImplementedError

    def to_json(self) -> Any:
        """Return the name alone where there are no options, as it is written."""
        whole = super().to_json()
        return whole if len(whole) > 1 else self.name
