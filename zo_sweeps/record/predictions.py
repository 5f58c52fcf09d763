"""The predictions of a trial on its test split: whether each is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zo_sweeps.core.events import Event
from zo_sweeps.core.jsonl import unpacked
from zo_sweeps.record.journal import tested


@dataclass(frozen=True)
class Predictions:
    """The predictions of one trial.

    Args:
        rows: digest of the test rows; predictions on the same rows can be compared example by example.
        right: whether each prediction is right, in the order of the rows.
    """

    rows: str
    right: tuple[bool, ...]


def predictions(events: Sequence[Event]) -> Predictions | None:
    """Return a trial's predictions at its selected step.

    None if it has none: it did not succeed, predicts numbers, or was run before predictions were kept.
    """
    test = tested(events)
    if test is None or not test.examples:
        return None
    return Predictions(test.rows or "", unpacked(test.right or "", test.examples))
