"""SQuAD's F1 of generated answers."""

from __future__ import annotations

import re
import statistics
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.metric import Metric, Of, same_length

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NO_ANSWER = ("CANNOTANSWER", "no answer")


@dataclass(frozen=True)
class SquadF1(Metric):
    """Mean over the rows of the word F1 of an answer and its best-matching accepted one (Rajpurkar et al., 2016).

    F1 = 2PR / (P + R), with P and R the share of common words (counted as often as they occur in both). Words are
    compared after lower-casing and dropping punctuation, articles and extra spaces. As in MeZO, a row whose first
    accepted answer says that there is no answer is scored by exact match.
    """

    display: ClassVar[str] = "F1"
    of: ClassVar[Of] = Of.TEXTS
    examples = ((["in the year 1999", "x"], [["9", "1999"], ["y"]], 1 / 4),)

    def compute(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
        same_length(predictions, references)
        return statistics.fmean(self.of_row(p, r) for p, r in zip(predictions, references, strict=True))

    def of_row(self, prediction: str, references: Sequence[str]) -> float:
        """Return one row's F1. Raises ValueError if there are no references."""
        if not references:
            raise ValueError("no reference answers")
        if references[0] in _NO_ANSWER:
            return float(words(prediction) == words(references[0]))
        return max(_f1(words(prediction), words(reference)) for reference in references)


def words(text: str) -> list[str]:
    """Return the words of a text, normalized by SQuAD's rules."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def _f1(prediction: list[str], reference: list[str]) -> float:
    common = sum((Counter(prediction) & Counter(reference)).values())
    return 2 * common / (len(prediction) + len(reference)) if common else 0.0
