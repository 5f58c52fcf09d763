"""The rows of several sweeps as plain data, for a page on which any two of them are compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zo_sweeps.plan.build import Plan
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.predictions import predictions
from zo_sweeps.tables import Table, TableCell
from zo_sweeps.tables.stats import CONFIDENCE
from zo_sweeps.tables.text_cells import value_text

DEGREES = 60  # of freedom, up to which Student's quantile is listed; the last one stands for more


def quantiles() -> list[float]:
    """Return Student's two-sided quantile at CONFIDENCE for 1, 2, …, DEGREES degrees of freedom."""
    from scipy.special import stdtrit

    return [round(float(stdtrit(k, (1 + CONFIDENCE) / 2)), 4) for k in range(1, DEGREES + 1)]


def rows_data(plan: Plan, tables: Sequence[Table], state_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of a sweep, each with its cells that have a value: by measure, column and seed.

    Cells of test scores have their runs' predictions, a bit per example, by the digest of the test rows. Rows without
    any value are left out. Cost: reads the journals of the runs behind the tables of scores.
    """
    journals = JournalStore(state_dir)
    rows = []
    for block in plan.grid.blocks:
        cells: dict[tuple[str, str], dict[str, Any]] = {}
        for table in tables:
            for key, label in table.spec.columns if block in dict(table.rows) else ():
                cell, measure = table.cells[block, key], table.spec.of(key)
                place = "".join(one.text() for one in cell.places)  # costs of different places are not compared
                where = (f"{measure.metric}-{measure.minus}-{measure.ratio} {measure.unit} {place}".rstrip(), label)
                if cell.mean is None or not cell.values or where in cells:
                    continue
                cells[where] = {
                    "key": " ".join(where),
                    "measure": measure.name or table.spec.layout.replace("_", " "),
                    "column": label,
                    "unit": measure.unit,
                    "digits": measure.digits,
                    "text": value_text(cell, table, key),
                    "seeds": {str(seed): value for seed, value in cell.values.items()},
                    "trials": list(cell.trial_ids),
                    "right": _right(cell, journals) if measure.metric.startswith("test/") else [],
                }
        if cells:
            rows.append({"block": block, "label": plan.grid.label(block), "cells": list(cells.values())})
    return rows


def _right(cell: TableCell, journals: JournalStore) -> list[dict[str, str]]:
    """Return the predictions of a cell's runs: the digest of the test rows, and a digit per example, 1 if right."""
    found = []
    for trial_id in cell.trial_ids:
        made = predictions(journals.read(trial_id))
        if made is not None:
            found.append({"rows": made.rows, "right": "".join("1" if right else "0" for right in made.right)})
    return found
