"""F1 of generated answers, as a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.engine.later import Tensor, torch
from zo_sweeps.methods.metric import Of
from zo_sweeps.methods.objective import Objective
from zo_sweeps.methods.registry import member
from zo_sweeps.methods.task import Task


@dataclass(frozen=True)
class F1(Objective):
    """f = -mean SQuAD F1 of the answers generated for a minibatch. MeZO's objective for SQuAD."""

    examples = (((["the red cat", "dog", "x"], [["cat"], ["a dog", "cat"], ["y"]]), -5 / 9),)
    differentiable: ClassVar[bool] = False
    generates: ClassVar[bool] = True
    gold_only: ClassVar[bool] = True

    def fits(self, task: Task) -> str:
        return "" if task.kind.predicts is Of.TEXTS else "it needs accepted answers, and the task has none"

    def of_texts(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Tensor:
        metric: Any = member("metric", "squad_f1")()
        scores = [metric.of_row(text, accepted) for text, accepted in zip(predictions, references, strict=True)]
        return torch.tensor([-sum(scores) / len(scores)])
