"""Tables as one tidy CSV in long form: a line per cell and measure, full precision, with the trials behind it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

from zo_sweeps.core.units import visible
from zo_sweeps.tables.cells import Table
from zo_sweeps.tables.records import Measure

HEADER = (
    *("table", "row", "column", "measure", "mean", "std", "n", "unit", "published", "difference", "state", "selected"),
    *("trial_ids", "finished", "planned", "block", "column_key", "notes", "std_population", "published_std"),
    *(
        "published_std_kind",
        "differs",
        "settings",
        "settings_written",
        "seeds",
        "seeds_written",
        "places",
        "low",
        "high",
    ),
)
FORMULA = ("=", "+", "-", "@", "\t", "\n", "\r")


def to_csv(*tables: Table) -> str:
    """Render tables as one CSV: a line per cell and measure, below one header.

    Numbers are in the unit of their line and in full precision, `selected` is JSON, ids are separated by spaces, and
    None is "". A measure that a cell prints in brackets has a line of its own, without deviations. The score of a guess
    on the same test rows has one without a block, a state and trials. A text that a spreadsheet would read as a formula
    begins with an apostrophe.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, HEADER, lineterminator="\n")
    writer.writeheader()
    for table in tables:
        for line in _lines(table):
            writer.writerow({name: _safe(value) if isinstance(value, str) else value for name, value in line.items()})
    return out.getvalue()


def _safe(text: str) -> str:
    """Return a text that no spreadsheet runs and that hides no character."""
    return visible(f"'{text}" if text.startswith(FORMULA) else text)


def _lines(table: Table) -> Iterator[Mapping[str, Any]]:
    name, spec = {"table": table.spec.name}, table.spec
    for block, label in table.rows:
        for key, column in table.columns:
            cell, measure, extent = table.cells[block, key], spec.of(key), table.cells[block, key].extent
            marks = sorted({*cell.marks, *table.row_marks[block], *table.column_marks[key]})
            differs = [flag.note for flag in cell.differs]
            notes = [table.footnotes[mark] for mark in marks if table.footnotes[mark] not in differs]
            line = {
                **name,
                "row": label,
                "column": column,
                "n": cell.n,
                "state": cell.state.value,
                "selected": json.dumps(dict(cell.selected), sort_keys=True) if cell.selected else "",
                "trial_ids": " ".join(cell.trial_ids),
                "finished": cell.finished,
                "planned": cell.planned,
                "block": block,
                "column_key": key,
                "notes": "; ".join([*notes, *spec.caveats]),
                "differs": "; ".join(differs),
                "places": "; ".join(place.described for place in cell.places),
            }
            own = {
                "std": cell.std,
                **dict(zip(("low", "high"), cell.interval or (), strict=False)),
                "std_population": cell.population_std,
                "published": None if cell.published is None else float(cell.published),
                "published_std": None if cell.published_std is None else float(cell.published_std),
                "published_std_kind": table.published.std_kind
                if table.published and cell.published_std is not None
                else "",
                "difference": cell.difference,
                "settings": extent and extent.settings,
                "settings_written": extent and extent.of_settings,
                "seeds": extent and extent.seeds,
                "seeds_written": extent and extent.of_seeds,
            }
            ranked = {"measure": "rank", "unit": "rank", "mean": cell.mean}
            yield {**line, **own, **(_value(measure, cell.mean) if cell.digits is None else ranked)}
            if measure.beside and cell.digits is None:
                yield {**line, **_value(measure.beside, cell.beside)}
    for guess, scores in table.guesses.items():
        for key, score in scores.items():
            at = {**name, "row": guess, "column": dict(table.columns)[key], "column_key": key}
            yield {**at, **_value(spec.of(key), score)}


def _value(measure: Measure, mean: float | None) -> dict[str, Any]:
    return {"measure": " - ".join(filter(None, (measure.metric, measure.minus))), "unit": measure.unit, "mean": mean}
