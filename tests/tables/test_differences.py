"""What differs from the paper: below the table, at its row or column, and in cells whose number depends on it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace

import pytest

from zo_sweeps.tables import Table, build, to_csv, to_latex, to_markdown, to_text
from zo_sweeps.tables.html import to_html
from zo_sweeps.tables.page import together
from zo_sweeps.tables.records import Flag

from .examples import PUBLISHED, small

pytestmark = pytest.mark.unit

CODES = Flag("differs in precision: NF4; the paper: SqueezeLLM", ("full",), about="precision")
LENGTH = Flag("differs in data: at most 512 tokens; the paper names no cap", about="data")
SCALES = Flag("differs in measure: with scales", columns=("rte",), about="measure")
FORMATS: dict[str, Callable[[Table], str]] = {
    "text": lambda table: to_text(table, width=1000),
    "md": to_markdown,
    "tex": to_latex,
    "csv": to_csv,
    "html": to_html,
}


def made(*flags: Flag, **changes: object) -> Table:
    layout, records = small()
    return build(replace(layout, flags=flags, **changes), records, PUBLISHED)


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_prints_what_differs_once_and_says_in_the_cell_that_another_precision_is_beside_it(
    form: str,
) -> None:
    text = FORMATS[form](made(CODES, LENGTH, SCALES))
    plain, without = text.replace("Differs", "differs"), FORMATS[form](made())
    for flag in (CODES, LENGTH, SCALES):
        assert flag.note in plain
        assert flag.note not in without.replace("Differs", "differs")
    if form == "csv":
        lines = {(line["block"], line["column_key"]): line for line in csv.DictReader(io.StringIO(text))}
        assert lines["full", "sst2"]["differs"] == f"{CODES.note}; {LENGTH.note}"
        assert lines["zero", "rte"]["differs"] == f"{LENGTH.note}; {SCALES.note}"
        assert CODES.note not in lines["full", "sst2"]["notes"], "not twice"
    else:
        assert all(plain.count(flag.note) == 1 for flag in (CODES, LENGTH, SCALES))
        assert text.count("other precision") == len(PUBLISHED.columns), "the cells of one row"


def test_a_difference_marks_cells_with_a_published_number_and_otherwise_the_row() -> None:
    table = made(CODES)
    marks = {place: [*cell.notes] for place, cell in table.cells.items()}
    assert {place for place, notes in marks.items() if CODES.note in notes} == {
        ("full", column) for column, _ in table.columns
    }
    unpublished = made(CODES, published_rows={})
    assert not any(CODES.note in c.notes for c in unpublished.cells.values())
    assert unpublished.row_notes["full"] == (CODES.note,)


def test_a_cell_with_other_settings_than_the_grid_as_written_differs_in_nothing() -> None:
    table = made(CODES, altered=frozenset({("full", "sst2")}))
    assert table.cells["full", "sst2"].differs == ()
    assert table.cells["full", "rte"].differs == (CODES,)


def test_the_mean_over_columns_differs_as_any_of_them_does() -> None:
    table = made(Flag("differs in model: Llama 3.2", columns=("rte",), about="model"), average=True)
    assert [flag.about for flag in table.cells["zero", "average"].differs] == ["model"]
    assert table.cells["zero", "sst2"].differs == ()


def test_a_difference_of_all_tables_of_a_page_is_said_once() -> None:
    both = Flag("differs in method: greedy", about="method")
    rows = {"rows": (("zero", "Zero-shot"),), "published_rows": {"zero": "Zero-shot"}}
    page = together([made(both, LENGTH, title=title, **rows) for title in ("T: one", "T: two")])
    said = [*(note.text for note in page.footnotes), *page.notes]
    assert sum("greedy" in line for line in said) == 1
    assert sum("512 tokens" in line for line in said) == 1
