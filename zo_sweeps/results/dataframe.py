"""The trials of a grid as a pandas DataFrame, for notebooks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zo_sweeps.plan.build import Plan
from zo_sweeps.results import past_sweeps
from zo_sweeps.results import tables as readout
from zo_sweeps.schedule.ledger import Standing, read_standing

if TYPE_CHECKING:
    from pandas import DataFrame


def results(
    grid: str = "quickstart",
    overrides: Sequence[str] = (),
    state_dir: str | Path | None = None,
    config_dirs: Sequence[str | Path] = (),
) -> DataFrame:
    """Return the grid's trials with their results so far, one row per trial and cell.

    Args:
        overrides: as on the command line that ran the grid. Default: those of the grid's last sweep in the state
            folder; if there was none, the grid as written. A sweep that was run is read as it was launched, from its
            own record: its model and data may have moved or changed since.
        state_dir: the sweep's state folder; defaults to the command line's.
        config_dirs: folders with grids, tasks and members of your own, as --config-dir.

    Columns: grid, block, row (its label), task (the column), seed, trial_id, state, node, steps_done, selected_step,
    error, then the searched hyper-parameters and the metrics under their own names (NaN where a trial has none).
    Reads the ledger; runs nothing. Warns of what has changed since the sweep was launched. Raises UserError as the
    command line does.
    """
    words = [f"+grid={grid}", *overrides, *([f"state_dir={state_dir}"] if state_dir is not None else [])]
    reading = past_sweeps.read(words, list(map(str, config_dirs)))
    for note in reading.notes:
        warnings.warn(note, stacklevel=3)  # the caller of zo_sweeps.results
    plan = reading.plan
    return frame(plan, read_standing(plan.config.folder))


def frame(plan: Plan, standing: Standing) -> DataFrame:
    """Return the trials of a plan; see `results` for the columns."""
    from pandas import DataFrame

    rows = []
    for record in readout.records(plan, standing):
        outcome = standing.outcomes.get(record.trial_id)
        rows.append(
            {
                "grid": plan.name,
                "block": record.block,
                "row": plan.grid.label(record.block),
                "task": record.column,
                "seed": record.seed,
                "trial_id": record.trial_id,
                "state": record.state,
                "node": standing.nodes.get(record.trial_id, ""),
                "steps_done": outcome.steps_done if outcome else 0,
                "selected_step": outcome.selected_step if outcome else 0,
                "error": record.note,
                **record.hyperparameters,
                **record.metrics,
            }
        )
    return DataFrame(rows)
