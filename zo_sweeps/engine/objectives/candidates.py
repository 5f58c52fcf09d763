"""Cross-entropy over an example's candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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

    def fits(self, task: Task) -> str:
        return "it chooses between options, and the task has none" if task.kind.generates else ""

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        from zo_sweeps.engine import losses

        return losses.candidates(logprobs, batch)
