"""A table as HTML: parsed, not searched."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from tests.results.pages import Page
from zo_sweeps.tables import Table, build, to_html
from zo_sweeps.tables.html import page
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
    text = page("A page", [to_html(table)])
    read = Reader(text)
    assert text.startswith("<!DOCTYPE html>")
    assert not {"img", "iframe", "script"} & {tag for tag, _ in read.attributes}
    assert (Page(text).loaded(), Page(text).faults(), Page(text).policy_faults()) == (set(), [], [])
    assert "://" not in text
    assert "url(" not in text
