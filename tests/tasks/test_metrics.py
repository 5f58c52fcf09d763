"""Accuracy and SQuAD's F1 on cases worked out by hand."""

from __future__ import annotations

import pytest

from zo_sweeps.tasks.metrics.accuracy import Accuracy
from zo_sweeps.tasks.metrics.squad_f1 import SquadF1

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("predictions", "golds"), [([], []), ([0], [0, 1])])
def test_accuracy_of_nothing_or_of_unlike_lengths_is_an_error(predictions: list[int], golds: list[int]) -> None:
    with pytest.raises(ValueError, match="predictions for"):
        Accuracy().compute(predictions, golds)


@pytest.mark.parametrize(
    ("prediction", "references", "expected"),
    [
        ("The Eiffel Tower!", ["eiffel tower"], 1.0),  # case, article, punctuation
        ("  a   cat  ", ["cat"], 1.0),
        ("U.S.", ["us"], 1.0),  # punctuation goes without leaving a space
        ("theatre", ["the atre"], 0.0),  # an article is a whole word
        ("in the year 1999", ["1999"], 2 * (1 / 3) * 1 / (1 / 3 + 1)),
        ("red red blue", ["red blue blue"], 2 / 3),  # words count as often as they occur in both
        ("Paris", ["London", "Paris, France", "Paris"], 1.0),  # the best gold counts
        ("Paris", ["London", "Paris, France"], 2 / 3),
        ("London", ["Paris"], 0.0),
        ("", ["Paris"], 0.0),
        ("no answer", ["no answer"], 1.0),
        ("there is no answer", ["no answer"], 0.0),  # exact match only
        ("cannotanswer", ["CANNOTANSWER"], 1.0),
    ],
)
def test_squad_f1_on_known_answers(prediction: str, references: list[str], expected: float) -> None:
    assert SquadF1().compute([prediction], [references]) == pytest.approx(expected)


def test_squad_f1_without_references_is_an_error() -> None:
    with pytest.raises(ValueError, match="no reference"):
        SquadF1().compute(["x"], [[]])
