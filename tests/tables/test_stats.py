"""Student's t, paired differences, and ranks against those that a paper prints."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import stdev

import pytest

from zo_sweeps.tables import build
from zo_sweeps.tables.published import load
from zo_sweeps.tables.records import RANK
from zo_sweeps.tables.renderings import to_csv
from zo_sweeps.tables.stats import by_example, interval, mcnemar, mean_ranks
from zo_sweeps.tables.text_cells import notes, value_text

from .examples import measure, record, spec

pytestmark = pytest.mark.unit

COLUMNS = (("sst2", "SST-2"), ("rte", "RTE"))
ROWS = (("a", "A"), ("b", "B"))


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
def test_the_half_widths_are_the_closed_forms_of_one_two_and_four_degrees_of_freedom(confidence: float) -> None:
    a = 1 - confidence**2
    q = math.cos(math.acos(math.sqrt(a)) / 3) / math.sqrt(a)
    quantiles = {1: math.tan(math.pi * confidence / 2), 2: confidence * math.sqrt(2 / a), 4: 2 * math.sqrt(q - 1)}
    for df, t in quantiles.items():
        values = [float(i) for i in range(df + 1)]
        low, high = interval(values, confidence) or (0, 0)
        assert (high - low) / 2 == pytest.approx(t * stdev(values) / math.sqrt(df + 1), rel=1e-9)


def test_an_interval_of_three_values_is_far_wider_than_the_normal_one() -> None:
    low, high = interval([1.0, 2.0, 3.0]) or (0, 0)
    assert (low, high) == (pytest.approx(2 - 4.30265 / math.sqrt(3), abs=1e-4), pytest.approx(4.48414, abs=1e-4))


def test_ninety_five_in_a_hundred_intervals_hold_the_true_mean() -> None:
    draw = random.Random(0)
    held = 0
    for _ in range(2000):
        low, high = interval([draw.gauss(3.0, 2.0) for _ in range(4)]) or (0, 0)
        held += low <= 3.0 <= high
    assert 0.935 < held / 2000 < 0.965


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0], [0.0, 0.0, 0.0]])
def test_where_the_spread_says_nothing_there_is_no_interval(values: list[float]) -> None:
    assert interval(values) is None


def test_equal_values_share_a_rank_and_none_is_left_out_after_them() -> None:
    assert mean_ranks([{"a": 3.0, "b": 5.0, "c": 5.0, "d": 1.0}]) == {"b": 1, "c": 1, "a": 2, "d": 3}
    assert mean_ranks([{"a": -3.0, "b": -5.0, "c": -3.0}]) == {"a": 1, "c": 1, "b": 2}


# Where the printed column is not the dense rank of the printed accuracies, as conf/paper flags.
DIFFERENT = {
    "sensitive/table1a": {"Q, ZO / Sensitive (C4, static)": 2.29, "ZO / Sensitive (task, static)": 2.43},
    "sensitive/table1b": {"Q, ZO / Prefix": 5.00, "Zero-shot": 7.14},
    "sensitive/table1c": {},
}


@pytest.mark.parametrize("reference", DIFFERENT)
def test_the_ranks_are_those_that_the_paper_prints(reference: str) -> None:
    table = load(reference)
    tasks = [name for name in table.columns if name not in ("Acc", "Rank")]
    ranks = mean_ranks([{row: table.rows[row][task] for row in table.rows} for task in tasks])
    for row, mean in ranks.items():
        assert round(mean, 2) == DIFFERENT[reference].get(row, table.rows[row]["Rank"]), row
    for row in DIFFERENT[reference]:
        assert table.rows[row]["Rank"] != round(ranks[row], 2)


def test_a_table_with_the_papers_accuracies_has_the_papers_rank_column_beside_it() -> None:
    paper = load("sensitive/table1c")
    tasks = [name for name in paper.columns if name not in ("Acc", "Rank")]
    rows = tuple((f"row{i}", name) for i, name in enumerate(paper.rows))
    layout = spec(rows=rows, columns=tuple((t, t) for t in tasks), published_rows=dict(rows), average=True, rank=True)
    records = [record({}, block=b, column=t, test=paper.rows[name][t] / 100) for b, name in rows for t in tasks]
    table = build(layout, records, paper)
    assert [label for _, label in table.columns][-2:] == ["Average", "Rank"]
    for block, name in rows:
        cell = table.cells[block, "rank"]
        assert (round(cell.mean or 0, 2), cell.published, cell.difference) == (paper.rows[name]["Rank"],) * 2 + (None,)
        assert value_text(cell, table) == f"{paper.rows[name]['Rank']:.2f}"
    assert any(line.startswith("Rank: mean rank") for line in notes(table))
    assert ",rank," in to_csv(table)


def test_ranks_need_every_column_and_say_among_how_many_rows_they_are() -> None:
    rows = (*ROWS, ("c", "C"))
    records = [record({}, block=b, column=c, test=t) for b, t in (("a", 0.9), ("b", 0.8)) for c in ("sst2", "rte")]
    layout = spec(rows=rows, columns=COLUMNS, rank=True)
    table = build(layout, [*records, record({}, block="c", test=0.99)])
    assert [table.cells[block, "rank"].mean for block, _ in rows] == [1.0, 2.0, None]
    assert table.cells["a", "rank"].notes == ("ranks are among the 2 rows with a value in every column",)
    lower = build(replace(layout, measure=replace(layout.measure, better="lower")), records)
    assert [lower.cells[block, "rank"].mean for block in "ab"] == [2.0, 1.0]


def test_values_that_print_alike_share_a_rank() -> None:
    records = [record({}, block="a", test=0.90001), record({}, block="b", test=0.90002)]
    table = build(spec(rows=ROWS, rank=True), records)
    assert table.cells["a", "rank"].mean == table.cells["b", "rank"].mean == 1.0


@pytest.mark.parametrize(
    ("name", "metric", "unit"), [("step_time", "seconds_per_step", 1e-3), ("memory", "peak_memory_bytes", 2**20)]
)
def test_values_that_print_alike_share_a_rank_in_the_unit_they_are_printed_in(
    name: str, metric: str, unit: float
) -> None:
    layout = spec(measure=measure(name), rank=True, rows=(("a", "A"), ("b", "B"), ("c", "C")))
    values = {"a": 1.501, "b": 1.499, "c": 2.5}
    table = build(layout, [record(block=row, metrics={metric: value * unit}) for row, value in values.items()])
    assert [table.cells[row, RANK].mean for row in values] == [1, 1, 2]


def test_mcnemar_is_the_two_sided_test_of_a_fair_coin() -> None:
    from scipy.stats import binomtest

    for one, other in [(0, 1), (8, 3), (3, 8), (25, 4), (150, 121), (1200, 900)]:
        assert mcnemar(one, other) == pytest.approx(binomtest(one, one + other).pvalue, rel=1e-12)
    assert [mcnemar(0, 0), mcnemar(5, 5), mcnemar(10, 0)] == [1.0, 1.0, 2**-9]


def test_an_example_counts_once_however_many_runs_there_are() -> None:
    a, b, c = (True, True, False, False), (False, True, False, True), (True, False, False, False)
    once = by_example([a], [b])
    assert (once.n, once.one, once.other, once.p) == (4, 1, 1, 1.0)
    assert by_example([a, a, a], [b, b]) == once
    two = by_example([a, c], [b])  # shares 1, 1/2, 0, 0 beside 0, 1, 0, 1
    assert (two.one, two.other) == (1, 2)
    assert (two + two).other == 4
    with pytest.raises(ValueError, match="zip"):
        by_example([a], [b[:3]])


def test_mcnemar_holds_its_level_where_both_are_as_good() -> None:
    draw, rejected = random.Random(1), 0
    for _ in range(1000):
        one, two = ([draw.random() < 0.8 for _ in range(60)] for _ in range(2))
        rejected += by_example([one], [two]).p < 0.05
    assert 0.005 < rejected / 1000 < 0.05, "an exact test is conservative"
