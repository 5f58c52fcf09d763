"""Tables as one tidy CSV in long form: a line per cell and measure, full precision, with the trials behind it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from typing import Any

from zo_sweeps.core.visible import visible
from zo_sweeps.tables.cells import Table, TableCell
from zo_sweeps.tables.records import Measure

EXTENT = ("settings", "settings_written", "seeds", "seeds_written")
HEADER = (
    "table",
    "row",
    "column",
    "measure",
    "mean",
    "std",
    "n",
    "unit",
    "published",
    "difference",
    "state",
    "selected",
    "trial_ids",
    "finished",
    "planned",
    "block",
    "column_key",
    "notes",
    "std_population",
    "published_std",
    "published_std_kind",
    "differs",
    *EXTENT,
    "places",
)
NUMBERS = ("mean", "std", "n", "published", "difference", "finished", "planned", "std_population", "published_std")
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

    def write(line: Mapping[str, Any]) -> None:
        writer.writerow({name: value if name in NUMBERS + EXTENT else _text(value) for name, value in line.items()})

    for table in tables:
        for block, label in table.rows:
            for key, column in table.columns:
                cell, measure = table.cells[block, key], table.spec.of(key)
                marks = sorted({*cell.marks, *table.row_marks[block], *table.column_marks[key]})
                differs = [flag.note for flag in cell.differs]
                notes = [table.footnotes[mark] for mark in marks if table.footnotes[mark] not in differs]
                line = {
                    "table": table.spec.name,
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
                    "notes": "; ".join([*notes, *table.spec.caveats]),
                    "differs": "; ".join(differs),
                    "places": "; ".join(place.described for place in cell.places),
                }
                write({**line, **_values(cell, measure, table), **_extent(cell)})
                if measure.beside and cell.digits is None:
                    write({**line, **_named(measure.beside), "mean": _number(cell.beside)})
        for guess, scores in table.guesses.items():
            for key, score in scores.items():
                named = {"table": table.spec.name, "row": guess, "column": dict(table.columns)[key], "column_key": key}
                write({**named, **_named(table.spec.of(key)), "mean": _number(score)})
    return out.getvalue()


def _text(text: str) -> str:
    """Return a text that no spreadsheet runs and that hides no character."""
    return visible(f"'{text}" if text.startswith(FORMULA) else text)


def _values(cell: TableCell, measure: Measure, table: Table) -> dict[str, str]:
    """Return the numbers of a cell: of its measure, or of ranks."""
    numbers = {
        "mean": cell.mean,
        "std": cell.std,
        "std_population": cell.population_std,
        "published": cell.published,
        "published_std": cell.published_std,
        "difference": cell.difference,
    }
    return {
        **(_named(measure) if cell.digits is None else {"measure": "rank", "unit": "rank"}),
        **{name: _number(number) for name, number in numbers.items()},
        "published_std_kind": table.published.std_kind if table.published and cell.published_std is not None else "",
    }


def _extent(cell: TableCell) -> dict[str, int]:
    """Return the settings and seeds of the grid as written that have a result, and those that it has."""
    one = cell.extent
    return dict(zip(EXTENT, (one.settings, one.of_settings, one.seeds, one.of_seeds), strict=True)) if one else {}


def _named(measure: Measure) -> dict[str, str]:
    return {"measure": " - ".join(filter(None, (measure.metric, measure.minus))), "unit": measure.unit}


def _number(value: float | None) -> str:
    return "" if value is None else repr(float(value))
