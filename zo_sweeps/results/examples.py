"""The rows of a table compared example by example, from the predictions in the journals."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.predictions import predictions
from zo_sweeps.tables import Table
from zo_sweeps.tables.stats import Examples, by_example

Runs = dict[tuple[str, str], list[tuple[bool, ...]]]  # (column, digest of the test rows) -> right, run by run


def compared(table: Table, state_dir: Path) -> dict[tuple[str, str], Examples]:
    """Return (row, other row) -> their examples, over the columns in which both have predictions on the same rows.

    Only of tables of test scores. Cost: reads the journals of the runs that the table shows.
    """
    if not table.spec.measure.metric.startswith("test/"):
        return {}
    journals = JournalStore(state_dir)
    runs = {block: _runs(table, block, journals) for block, _ in table.rows}
    found = {}
    for (row, _), (other, _) in combinations(table.rows, 2):
        both = [by_example(runs[row][key], runs[other][key]) for key in runs[row] if key in runs[other]]
        if both:
            found[row, other] = sum(both, Examples(0, 0, 0))
    return found


def _runs(table: Table, block: str, journals: JournalStore) -> Mapping[tuple[str, str], list[tuple[bool, ...]]]:
    runs: Runs = {}
    for column, _ in table.columns:
        cell = table.cells[block, column]
        for trial_id in cell.trial_ids if cell.values else ():
            made = predictions(journals.read(trial_id))
            if made is not None:
                runs.setdefault((column, made.rows), []).append(made.right)
    return runs
