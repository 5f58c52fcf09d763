"""Cross-entropy of the right answer's tokens over the whole vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.later import Batch, Tensor, losses
from zo_sweeps.methods.objective import Answers, Objective


@dataclass(frozen=True)
class Tokens(Objective):
    """f = -mean of log p over the batch's gold answer tokens. P-RGE (arXiv:2409.15520)."""

    examples = (
        ((Answers(((-1.0,), (-2.0,)), 0), Answers(((-1.0,), (-4.0, -2.0)), 1)), (1 + 4 + 2) / 3),
    )  # over tokens, not examples
    gold_only: ClassVar[bool] = True

    def loss(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return losses.tokens(logprobs, batch)

    def terms(self, batch: Batch) -> int:
        """Return the number of gold answer tokens."""
        return int(losses.is_gold(batch).sum())

    def of_scores(self, scores: Tensor, gold: Tensor) -> Tensor:
        """Return the mean over the gold answer's tokens of -log p."""
        return -scores.gather(2, gold.unsqueeze(2)).squeeze(2)

    def mass(self, length: int) -> float:
        return length
