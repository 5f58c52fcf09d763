"""Scores of predictions, as fractions of 1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NO_ANSWER = ("CANNOTANSWER", "no answer")


def accuracy(predictions: Sequence[int], golds: Sequence[int]) -> float:
    """Share of `predictions` equal to `golds`. Raises ValueError when they differ in length or are empty."""
    if len(predictions) != len(golds) or not golds:
        raise ValueError(f"{len(predictions)} predictions for {len(golds)} golds")
    return sum(p == g for p, g in zip(predictions, golds, strict=True)) / len(golds)


def squad_f1(prediction: str, references: Sequence[str]) -> float:
    """F1 over the words of `prediction` and of the best of `references` (Rajpurkar et al., 2016).

    F1 = 2PR / (P + R), with P and R the share of common words (counted as often as they occur in both). Words are
    taken after lower-casing and dropping punctuation, articles and extra spaces. As in MeZO, a row whose first
    reference says that there is no answer is scored by exact match. Raises ValueError without references.
    """
    if not references:
        raise ValueError("no reference answers")
    if references[0] in _NO_ANSWER:
        return float(_words(prediction) == _words(references[0]))
    return max(_f1(_words(prediction), _words(reference)) for reference in references)


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def _f1(prediction: list[str], reference: list[str]) -> float:
    common = sum((Counter(prediction) & Counter(reference)).values())
    return 2 * common / (len(prediction) + len(reference)) if common else 0.0
