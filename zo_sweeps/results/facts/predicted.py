"""Predicted beside actual: the seconds that a ledger's forecasts had for trials, and those that they took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zo_sweeps.core.document import key
from zo_sweeps.core.trial import TrialState
from zo_sweeps.core.units import seconds_text
from zo_sweeps.plan.build import Plan
from zo_sweeps.schedule.ledger import Standing

EVERY = "all"


@dataclass(frozen=True)
class PredictedRow:
    """The finished trials of a row, or of all rows, whose time was predicted before they ran."""

    label: str = key("the row's printed name; all: each trial of the sweep, once")
    trials: int = key("number of these trials")
    planned_seconds: float | None = key("predicted before the sweep began; null: nothing was known of some then")
    expected_seconds: float = key("predicted just before each trial began, by what had finished until then")
    actual_seconds: float = key("wall-clock of the trials")


def predicted_rows(plan: Plan, standing: Standing) -> list[PredictedRow]:
    """Return a line per row of the grid with such trials, and one for all; [] if there are none.

    Trials that ended in another way than success, or in several attempts, are left out.
    """
    rows = []
    for block in plan.grid.blocks:
        ids = dict.fromkeys(cell.trial_id for cell in plan.cells if cell.block == block)
        rows.append(_row(plan.grid.label(block), [*ids], standing))
    rows.append(_row(EVERY, [*plan.every], standing))
    return [row for row in rows if row.trials]


def beside(predicted: float | None, actual: float) -> tuple[str, str]:
    """Return a prediction, and by how much of the actual value it was off: ("4 min", "+12 %"); "?" for none."""
    return ("?", "") if predicted is None else (seconds_text(predicted), f"{100 * (predicted / actual - 1):+.0f} %")


def _row(label: str, ids: Sequence[str], standing: Standing) -> PredictedRow:
    taken = {i: standing.outcomes[i].metrics.get("wall_seconds", 0.0) for i in ids if i in standing.outcomes}
    found = [
        i for i in taken if taken[i] and i in standing.forecasts and standing.outcomes[i].state is TrialState.SUCCEEDED
    ]
    planned = [standing.forecasts[i].planned for i in found]
    return PredictedRow(
        label=label,
        trials=len(found),
        planned_seconds=None if None in planned else sum(one or 0.0 for one in planned),
        expected_seconds=sum(standing.forecasts[i].expected for i in found),
        actual_seconds=sum(taken[i] for i in found),
    )
