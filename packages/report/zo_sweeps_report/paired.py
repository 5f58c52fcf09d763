"""Rows of a table in pairs: by seed, with a confidence interval, and example by example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean

from zo_sweeps.record.journal import JournalStore, RowPredictions, predictions
from zo_sweeps.tables.cells import Table, TableCell
from zo_sweeps.tables.stats import Examples, by_example, interval


@dataclass(frozen=True)
class PairedDifference:
    """The mean of the paired differences `row` − `other`, in the table's unit.

    Args:
        row, other: keys of the rows.
        n: the number of pairs.
        low, high: ends of the confidence interval of the mean; None for a single pair, or if all pairs are equal.
    """

    row: str
    other: str
    mean: float
    n: int
    low: float | None
    high: float | None

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def turned(self) -> PairedDifference:
        """`other` − `row`."""
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return PairedDifference(self.other, self.row, -self.mean, self.n, low, high)


def differences(table: Table) -> list[PairedDifference]:
    """Compare every row with every later one, paired over the seeds and columns in which both have a value.

    A run that serves several seeds (zero-shot) is paired with each of them. Rows without a common pair are left out,
    and so are columns with a metric of their own, in another unit.
    Cost: rows^2 · columns · seeds.
    """
    keys, results = [key for key, _ in table.columns if key not in table.spec.measures], []
    for (row, _), (other, _) in combinations(table.rows, 2):
        if pairs := paired((table.cells[row, key], table.cells[other, key]) for key in keys):
            low, high = interval(pairs) or (None, None)
            results.append(PairedDifference(row, other, fmean(pairs), len(pairs), low, high))
    return results


def paired(cells: Iterable[tuple[TableCell, TableCell]]) -> list[float]:
    """Return the differences of pairs of cells, seed by seed."""
    return [one.values[s] - other.values[s] for one, other in cells for s in one.values if s in other.values]


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
    """Return (column, digest of the test rows) -> right, run by run."""
    runs: dict[tuple[str, str], list[tuple[bool, ...]]] = {}
    for column, _ in table.columns:
        cell = table.cells[block, column]
        for made in of_cell(cell, journals) if cell.values else ():
            runs.setdefault((column, made.rows), []).append(made.right)
    return runs


def of_cell(cell: TableCell, journals: JournalStore) -> list[RowPredictions]:
    """Return the test predictions of a cell's runs, of those that have any."""
    made = (predictions(journals.read(trial_id)) for trial_id in cell.trial_ids)
    return [one for one in made if one is not None]
