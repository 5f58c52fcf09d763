"""Fragments of a page: paired differences as a forest plot, and data that stays data."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean

import pytest

from tests.results.pages import Page
from tests.tables.examples import record, small, spec
from tests.tables.test_hidden import HIDDEN, TURNED
from tests.tables.test_html import Reader
from zo_sweeps.core.units import visible
from zo_sweeps.tables import Table, build, to_html
from zo_sweeps.tables.html import page
from zo_sweeps.tables.stats import Examples
from zo_sweeps.tables.text_cells import signed
from zo_sweeps_report.draw import inline_svg
from zo_sweeps_report.figure_kinds.line import Line
from zo_sweeps_report.figures import Figure, Panel, Series
from zo_sweeps_report.fragments import as_script, differences_html
from zo_sweeps_report.paired import differences

pytestmark = pytest.mark.unit


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


def test_a_page_s_data_and_figures_hide_nothing() -> None:
    assert json.loads(as_script({"label": TURNED})) == {"label": visible(TURNED)}
    series = Series(TURNED, 0, (1.0, 2.0), (1.0, 2.0), (None, None))
    svg = inline_svg(Figure("f", TURNED, Line(), "x", "y", (Panel(TURNED, (series,)),)), "f")
    assert not {*svg} & {*HIDDEN}
    assert "&lt;U+202E&gt;" in svg
