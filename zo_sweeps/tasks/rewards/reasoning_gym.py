"""The verifiers of reasoning-gym, each for the rows of its own generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.methods.reward import Reward

_ROW = {"question": "0 - 4 =", "answer": "-4", "metadata": {"source_dataset": "chain_sum"}}


@dataclass(frozen=True)
class ReasoningGym(Reward):
    """The score, 0 to 1, that the row's generator gives an answer: the last <answer>...</answer>, or else the text.

    Some generators score parts: one whose text contains the answer, or has a form that can be read, may be above 0.
    """

    needs: ClassVar[str] = "reasoning-gym"
    examples = ((_ROW, "-4", 1.0), (_ROW, "I add: <answer>-4</answer>", 1.0), (_ROW, "<answer>4</answer>", 0.0))

    def of(self, row: Mapping[str, Any], text: str) -> float:
        from reasoning_gym import get_score_answer_fn
        from reasoning_gym.utils import extract_answer

        score = get_score_answer_fn(row["metadata"]["source_dataset"])
        return float(score(extract_answer(text) or text, row))
