"""Cross-entropy over an example's candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.methods.objective import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from zo_sweeps.engine.batch import Batch
    from zo_sweeps.methods.task import Task


@dataclass(frozen=True)
class Candidates(Objective):
    """f = mean over examples of -log softmax(s)[gold], with s_c the mean log p of candidate c's answer tokens. MeZO.

    In a regression task the gold candidate is the one with the nearest value.
    """

    not_in_program: ClassVar[str] = ""

    def fits(self, task: Task) -> str:
        return "it chooses between options, and the task has none" if task.kind.generates else ""

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        from zo_sweeps.engine import losses

        return losses.candidates(logprobs, batch)

    def of_scores(self, scores: Tensor, gold: Tensor) -> Tensor:
        from zo_sweeps.engine import losses

        return losses.cross_entropy(scores, gold)
