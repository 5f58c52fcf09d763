"""Whether every cell of a grid's tables has enough finished seeds behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from zo_sweeps.config.composer import Composer
from zo_sweeps.plan.build import Plan
from zo_sweeps.results import tables as readout
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tables import Record, Table
from zo_sweeps.tables.cells import CellState, TableCell
from zo_sweeps.tables.records import AVERAGE, LARGEST, RANK

OF_OTHERS = (AVERAGE, LARGEST, RANK)  # columns computed from the others


def unbacked(plan: Plan, composer: Composer, standing: Standing, n: int) -> Iterator[str]:
    """Yield a line for each cell of the grid's tables that fewer than `n` finished seeds are behind.

    A cell shows the runs of its selected setting; until its search is finished, another may be selected. A setting that
    diverged or ran out of memory in each of its seeds is finished. Cells that the grid does not plan are left out.
    """
    records: dict[str, list[Record]] = {}
    for record in readout.records(plan, standing):
        records.setdefault(record.trial_id, []).append(record)
    for table in readout.tables(plan, composer, standing):
        for block, label in table.rows:
            for column, name in table.columns:
                cell = table.cells[block, column]
                if column not in OF_OTHERS and (why := _lack(table, block, column, cell, records, n)):
                    yield f"{table.spec.name}, {label}, {name}: {why}"


def _lack(
    table: Table, block: str, column: str, cell: TableCell, records: Mapping[str, Sequence[Record]], n: int
) -> str:
    """Return what a cell lacks; "" if it is backed, or the grid does not plan it."""
    if cell.state is CellState.NOT_PLANNED and not cell.planned:
        return ""
    if cell.finished < cell.planned:
        return f"{cell.finished} of {cell.planned} trials have a result"
    if cell.state is CellState.FAILED or not cell.finished:
        return "no trial has a result"
    blocks = {block, table.spec.over.get(block, block), *filter(None, [table.spec.beyond])}
    seeds: dict[str, set[int]] = {}
    for trial_id in cell.trial_ids:
        for record in records.get(trial_id, ()):
            if record.is_result and record.block in blocks:
                seeds.setdefault(record.block, set()).update((record.seed, *record.also))
    fewest = min(map(len, seeds.values()), default=0)
    return "" if fewest >= n else f"{fewest} of {n} seeds"
