"""The best of several answers of the untrained model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.kind import Kind


@dataclass(frozen=True)
class BestOfN(Kind):
    """Scoring of the untrained model by the best of n answers to each prompt: the first with the highest reward.

    They are drawn at the task's temperature, or at 1 where that is greedy. The rewards select on dev and test as well:
    a verifier must be at hand whenever the model answers, and each answer costs n.
    """

    runner: ClassVar[str] = "zo_sweeps.run.runner:Untrained"
    causal_only: ClassVar[str] = "the best of several answers"
    parts: ClassVar[tuple[str, ...]] = ("seed",)

    n: int = option(8, "answers sampled to each prompt", least=2)

    @property
    def answers(self) -> int:
        return self.n
