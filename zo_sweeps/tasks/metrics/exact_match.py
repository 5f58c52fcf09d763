"""Share of generated answers that match an accepted one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.metric import Metric, Of, same_length
from zo_sweeps.tasks.metrics.squad_f1 import words


@dataclass(frozen=True)
class ExactMatch(Metric):
    """Share of the answers with the same words as an accepted one, normalized by SQuAD's rules (see squad_f1)."""

    display: ClassVar[str] = "exact match"
    of: ClassVar[Of] = Of.TEXTS
    examples = ((["The cat!", "a dog", "fox"], [["dog", "cat"], ["dogs"], ["a fox"]], 2 / 3),)

    def compute(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
        same_length(predictions, references)
        hits = (words(p) in map(words, accepted) for p, accepted in zip(predictions, references, strict=True))
        return sum(hits) / len(references)
