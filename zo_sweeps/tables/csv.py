"""A table as CSV in long form: one line per cell, full precision, with the runs behind it."""

from __future__ import annotations

import csv
import io
import json

from zo_sweeps.tables.cells import Table

HEADER = (
    "table",
    "row",
    "column",
    "mean",
    "std",
    "n",
    "unit",
    "published",
    "difference",
    "state",
    "selected",
    "trial_ids",
    "run_ids",
    "beside",
    "beside_unit",
    "finished",
    "planned",
    "block",
    "column_key",
    "notes",
    "std_population",
    "published_std",
    "published_std_kind",
)


def to_csv(table: Table) -> str:
    """Render the table as CSV: numbers in the printed unit, `selected` as JSON, ids separated by spaces, None as ""."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    for block, label in table.rows:
        for key, column in table.columns:
            cell, beside = table.cells[block, key], table.spec.of(key).beside
            marks = sorted({*cell.marks, *table.row_marks[block], *table.column_marks[key]})
            writer.writerow(
                (
                    table.spec.name,
                    label,
                    column,
                    *("" if number is None else repr(float(number)) for number in (cell.mean, cell.std)),
                    cell.n,
                    table.spec.of(key).unit if cell.digits is None else "rank",
                    *("" if number is None else repr(float(number)) for number in (cell.published, cell.difference)),
                    cell.state.value,
                    json.dumps(dict(cell.selected), sort_keys=True) if cell.selected else "",
                    " ".join(cell.trial_ids),
                    " ".join(cell.run_ids),
                    "" if cell.beside is None else repr(cell.beside),
                    beside.unit if beside else "",
                    cell.finished,
                    cell.planned,
                    block,
                    key,
                    "; ".join([*(table.footnotes[mark] for mark in marks), *table.spec.caveats]),
                    *(
                        "" if number is None else repr(float(number))
                        for number in (cell.population_std, cell.published_std)
                    ),
                    "" if cell.published_std is None or table.published is None else table.published.std_kind,
                )
            )
    return out.getvalue()
