"""A table as HTML: parsed, not searched."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from statistics import fmean

import pytest

from tests.results.pages import Page
from zo_sweeps.tables import Table, build, to_html
from zo_sweeps.tables.html import differences_html, page
from zo_sweeps.tables.stats import Examples, differences
from zo_sweeps.tables.text_cells import footnotes, main_grid, notes, signed

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
    assert not {"img", "iframe"} & {tag for tag, _ in read.attributes}
    assert {given.get("type") for tag, given in read.attributes if tag == "script"} == {"application/json"}
    assert (Page(text).loaded(), Page(text).faults(), Page(text).policy_faults()) == (set(), [], [])
    assert "://" not in text
    assert "url(" not in text


def forest(reference: str, examples: dict[tuple[str, str], Examples] | None = None) -> tuple[Table, str]:
    rows = (("a", "A"), ("b", "B <b>"), ("c", "C"), ("d", "D"))
    values = {"a": (0.9, 0.91), "b": (0.8, 0.82), "c": (0.5, 0.5), "d": (0.4,)}
    records = [record({}, s, block=b, test=v) for b, pair in values.items() for s, v in enumerate(pair)]
    table = build(spec(rows=rows), records)
    return table, differences_html(table, examples or {}, "", reference)


@pytest.mark.parametrize("reference", ["a", "b", "c"])
def test_a_forest_plot_has_every_row_minus_the_reference_with_the_interval_and_the_pairs(reference: str) -> None:
    table, text = forest(reference)
    label = dict(table.rows)[reference]
    header, *lines = Reader(text).tables[0]
    assert header == [f"row − {label}", "← worse · better →", "difference", "95% interval", "pairs"]
    assert [line[0] for line in lines] == [name for block, name in table.rows if block != reference]
    found = {(one.row, one.other): one for each in differences(table) for one in (each, each.turned)}
    drawn = Page(page("A page", [to_html(table), text]))
    dots = [float(a["cx"]) for a, _ in drawn.all("circle")]
    paths = [a["d"] for a, _ in drawn.all("path")]
    place: dict[float, float] = {}
    for i, (block, line) in enumerate(zip([b for b, _ in table.rows if b != reference], lines, strict=True)):
        one = found[block, reference]
        mean = [v - table.cells[reference, "sst2"].values[s] for s, v in table.cells[block, "sst2"].values.items()]
        assert one.mean == pytest.approx(fmean(mean))
        ends = "" if one.low is None or one.high is None else f"[{signed(one.low, 1)}, {signed(one.high, 1)}]"
        assert line[1:] == ["", signed(one.mean, 1), ends, str(one.n)]
        place |= {0.0: float(paths[2 * i][1:].split()[0]), one.mean: dots[i]}
        if one.low is not None and one.high is not None:
            low, high = map(float, paths[2 * i + 1][1:].split(" 10H"))
            place |= {one.low: low, one.high: high}
    (x0, y0), *others, (x1, y1) = sorted(place.items())
    assert (y0, y1) == (4.0, 196.0)
    for x, y in others:
        assert y == pytest.approx(4 + 192 * (x - x0) / (x1 - x0), abs=0.06), "one scale for all rows"
    assert drawn.faults() == []


def test_the_pairs_of_all_rows_are_data_of_the_page_and_an_interval_that_excludes_zero_is_bold() -> None:
    _, text = forest("c", {("a", "b"): Examples(200, 25, 4)})
    (data,) = [json.loads(content) for given, content in Page(page("A page", [text])).all("script")]
    assert (data["against"], data["rows"], data["digits"]) == ("C", ["A", "B <b>", "C", "D"], 1)
    by_example = ["25 : 4 of 200, p=0.0001", "4 : 25 of 200, p=0.0001"]
    assert data["pairs"][0] == [0, 1, 2, 9.5, 3.1, 15.9, True, *by_example]
    assert [pair[:2] for pair in data["pairs"]] == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert [pair[2:7] for pair in data["pairs"] if pair[1] == 3] == [
        [1, pytest.approx(mean), None, None, False] for mean in (50.0, 40.0, 10.0)
    ]
    assert [given["class"] for tag, given in Reader(text).attributes if tag == "tr" and given] == ["clear"] * 2
    assert forest("nowhere")[1] == forest("a")[1], "of a row that is not there"


def test_a_table_in_which_nothing_pairs_has_no_differences() -> None:
    assert differences_html(build(spec(), [record({})]), {}) == ""
    layout, records = small()
    assert (
        differences_html(build(replace(layout, rows=layout.rows[:1], published_rows={}, flags=()), records), {}) == ""
    )
