"""A table as HTML: parsed, not searched."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.results.pages import Page
from zo_sweeps.tables import Table, build, to_html
from zo_sweeps.tables.html import differences_html, page
from zo_sweeps.tables.stats import Examples
from zo_sweeps.tables.text_cells import footnotes, main_grid, notes

from .examples import PUBLISHED, record, shuffled, small, spec

pytestmark = pytest.mark.unit
VOID = {"meta", "br", "hr", "img", "link"}


class Reader(HTMLParser):
    """Tables as lists of rows of texts; raises on tags that do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self.open):
            separator = " " if self.open[-1] in ("span", "sup") else ""
            self.tables[-1][-1][-1] += separator + data


@pytest.fixture(scope="module")
def table() -> Table:
    layout, records = small()
    return build(layout, records, PUBLISHED)


def test_every_cell_stands_in_its_place_with_its_marks_and_published_value(table: Table) -> None:
    found = Reader(to_html(table)).tables[0]
    grid = main_grid(table)
    assert len(found) == 1 + len(table.rows)
    for texts, row in zip((grid.header, *grid.rows), found, strict=True):
        for text, cell in zip(texts, row, strict=True):
            assert cell == " ".join(part for part in (text.text, ",".join(text.marks), *text.below) if part)


def test_notes_footnotes_and_selected_hyperparameters_are_there(table: Table) -> None:
    read = Reader(to_html(table))
    for note in (*notes(table), *(f"{note.marks[0]} {note.text}" for note in footnotes(table))):
        assert note in read.text
    assert "Selected hyper-parameters" in read.text
    assert read.tables[1][2][:2] == ["ZO-LoRA-FA (q>1): lr · q", "0.0005↑ · 4↑"]


def test_a_cell_names_the_trials_behind_it(table: Table) -> None:
    titles = [attributes["title"] or "" for _, attributes in Reader(to_html(table)).attributes if "title" in attributes]
    assert any(all(i in title for i in table.cells["full", "sst2"].trial_ids) for title in titles)


def test_markup_in_names_stays_text() -> None:
    label = '<script>alert(1)</script> & "x"'
    text = to_html(build(spec(title=label, rows=(("zo", label),)), [record({}, note=label)]))
    assert "<script" not in text
    assert Reader(text).tables[0][1][0] == label
    assert "<script" not in page(label, [to_html(build(spec(title=label), []))])


def test_the_order_of_the_records_does_not_reach_the_page(table: Table) -> None:
    layout, records = small()
    assert to_html(build(layout, shuffled(records, 7), PUBLISHED)) == to_html(table)


def test_a_page_is_a_whole_document_without_addresses(table: Table) -> None:
    text = page("A page", [to_html(table), differences_html(table, {})])
    read = Reader(text)
    assert text.startswith("<!DOCTYPE html>")
    assert not {"script", "img", "iframe"} & {tag for tag, _ in read.attributes}
    assert (Page(text).loaded(), Page(text).faults(), Page(text).policy_faults()) == (set(), [], [])
    assert "://" not in text
    assert "url(" not in text


def test_differences_stand_above_the_diagonal_with_interval_and_n() -> None:
    rows = (("a", "A"), ("b", "B"), ("c", "C"))
    values = {"a": (0.9, 0.91), "b": (0.8, 0.82), "c": (0.5, 0.5)}
    records = [record({}, s, block=b, test=v) for b, pair in values.items() for s, v in enumerate(pair)]
    read = Reader(differences_html(build(spec(rows=rows), records), {}))
    header, first, second = read.tables[0]
    assert header == ["row − column", "B", "C"]
    assert first[1] == "+9.5 [+3.1, +15.9] n=2"
    assert second[:2] == ["B", ""]
    assert [attributes["class"] for tag, attributes in read.attributes if tag == "td" and attributes] == ["clear"] * 3
    by_example = Reader(differences_html(build(spec(rows=rows), records), {("a", "b"): Examples(200, 25, 4)}))
    assert by_example.tables[0][1][1:3] == ["+9.5 [+3.1, +15.9] n=2 25 : 4 of 200, p=0.0001", first[2]]


def test_a_matrix_of_twelve_rows_scrolls_beside_its_row_labels() -> None:
    def matrix(n: int) -> Page:
        rows = tuple((f"r{i}", f"Row {i}") for i in range(n))
        records = [record({}, seed=s, block=b, test=0.5 + i * s / 99) for i, (b, _) in enumerate(rows) for s in (0, 1)]
        return Page(page("A page", [differences_html(build(spec(rows=rows), records), {})]))

    twelve = matrix(12)
    (section,) = [attributes["class"] for attributes, _ in twelve.all("section")]
    assert section == "differences broad", "it takes the width of the window"
    assert [attributes["class"] for attributes, _ in matrix(4).all("section")] == ["differences"]
    (wide,) = [attributes for attributes, _ in twelve.all("div")]
    assert (wide["class"], wide["tabindex"], wide["role"]) == ("wide", "0", "region"), "it scrolls, by keyboard too"
    heads = [(attributes["scope"], text) for attributes, text in twelve.all("th")]
    assert heads[:12] == [("col", "row − column"), *(("col", f"Row {i}") for i in range(1, 12))]
    assert heads[12:] == [("row", f"Row {i}") for i in range(11)]
    (style,) = [text for _, text in twelve.all("style")]
    assert ".differences .wide tr > :first-child { position: sticky; left: 0;" in style


def test_a_table_in_which_nothing_pairs_has_no_differences() -> None:
    assert differences_html(build(spec(), [record({})]), {}) == ""
    layout, records = small()
    assert (
        differences_html(build(replace(layout, rows=layout.rows[:1], published_rows={}, flags=()), records), {}) == ""
    )
