"""Layouts that compare rows with one of them, and that count the settings of a search."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import stdev

import pytest

from tests.tables.examples import LR, measure, record, spec
from zo_sweeps.tables import build, to_csv, to_latex, to_markdown, to_text
from zo_sweeps.tables.cells import CellState
from zo_sweeps.tables.html import to_html
from zo_sweeps.tables.page import readable

pytestmark = pytest.mark.unit


def test_a_table_of_differences_pairs_by_seed_and_its_intervals_hold_for_all_rows_together():
    from scipy.stats import t

    better = {"a": [0.6, 0.62, 0.64], "b": [0.5, 0.5, 0.5], "mezo": [0.5, 0.51, 0.55]}
    runs = [
        record(block=block, column=column, seed=seed, test=value + shift)
        for column, shift in (("sst2", 0.0), ("rte", 0.1))
        for block, values in better.items()
        for seed, value in enumerate(values)
    ]
    rows = {"rows": (("a", "A"), ("b", "B")), "columns": (("sst2", "SST-2"), ("rte", "RTE"))}
    over = {"a": "mezo", "b": "mezo"}
    table = build(spec(measure=measure("accuracy_difference"), over=over, average=True, **rows), runs)
    cell = table.cells["a", "rte"]
    pairs = [10.0, 11.0, 9.0]
    half = t.ppf(1 - 0.05 / 2 / 2, 2) * 1.0 / math.sqrt(3)
    assert cell.mean == pytest.approx(10.0)
    assert cell.interval == pytest.approx((10 - half, 10 + half))
    assert (cell.n, cell.std) == (3, None)
    average = table.cells["a", "average"]
    assert average.n == 6
    spread = t.ppf(1 - 0.05 / 2 / 2, 5) * stdev([*pairs, *pairs]) / math.sqrt(6)
    assert average.interval == pytest.approx((10 - spread, 10 + spread))
    assert "−2.0 [" in to_text(table)
    assert to_csv(table).splitlines()[1].endswith(f"{cell.interval[0]},{cell.interval[1]}")


def test_the_interval_of_a_difference_is_printed_in_the_unit_of_its_mean():
    time = replace(measure("step_time"), paired=True)
    runs = [
        record(block=block, seed=seed, metrics={time.metric: value * (1 + seed)})
        for block, value in (("zo", 0.003), ("mezo", 0.002))
        for seed in range(3)
    ]
    table = build(spec(measure=time, over={"zo": "mezo"}), runs)
    shown = readable(table)
    assert (table.spec.measure.unit, shown.spec.measure.unit) == ("s/step", "ms/step")
    was, now = (one.cells["zo", "sst2"] for one in (table, shown))
    assert now.mean == pytest.approx(1000 * was.mean)
    assert now.interval == pytest.approx([1000 * end for end in was.interval])


def test_a_difference_of_a_row_without_a_value_is_none():
    runs = [record(), record(block="mezo", state="DIVERGED")]
    table = build(spec(measure=measure("accuracy_difference"), over={"zo": "mezo"}), runs)
    assert table.cells["zo", "sst2"].state is CellState.DIVERGED
    assert table.cells["zo", "sst2"].mean is None


@pytest.mark.parametrize(
    ("mine", "theirs", "state", "text"),
    [
        ([0, 1, 2], [0], CellState.PARTIAL, "+10.0 1/3"),
        ([0], [0, 1, 2], CellState.PARTIAL, "+10.0 1/3"),
        ([0, 1, 2], [0, 1, 2], CellState.DONE, "+10.0"),
        ([0, 1], [2], CellState.IN_PROGRESS, "1/3"),
    ],
)
def test_a_difference_is_as_finished_as_the_one_of_the_two_rows_that_has_fewer_results(mine, theirs, state, text):
    runs = [
        record(block=block, seed=seed, test=test, state="SUCCEEDED" if seed in ended else "RUNNING")
        for block, ended, test in (("zo", mine, 0.6), ("mezo", theirs, 0.5))
        for seed in range(3)
    ]
    table = build(spec(measure=measure("accuracy_difference"), over={"zo": "mezo"}), runs)
    cell = table.cells["zo", "sst2"]
    assert (cell.state, cell.n) == (state, len({*mine} & {*theirs}))
    for show in (to_text, to_latex, to_markdown, to_html):
        assert text in show(table)


@pytest.mark.parametrize(
    ("dev", "reaches", "shown"),
    [
        ([-1.0, -1.04, -1.06, -2.0], 0.95, 5 / 3),
        ([10.0, 10.4, 10.6, 20.0], 1.05, 5 / 3),
        ([0.0, 0.0, -0.1, -0.2], 0.95, 5 / 3),
    ],
)
def test_a_search_of_negative_scores_and_of_ones_that_are_better_when_lower_counts_from_its_best(dev, reaches, shown):
    runs = [record({LR: n}, metrics={"dev/metric": value}) for n, value in enumerate(dev)]
    search = replace(measure("search_trials"), reaches=reaches)
    assert build(spec(measure=search), runs).cells["zo", "sst2"].mean == pytest.approx(shown)


@pytest.mark.parametrize(("states", "shown"), [(["SUCCEEDED"] * 4, 5 / 3), (["DIVERGED", *["SUCCEEDED"] * 3], 5 / 2)])
def test_a_search_counts_the_settings_that_are_nearly_as_good_as_its_best(states, shown):
    dev = [0.9, 0.86, 0.3, 0.2]
    runs = [
        record({LR: n}, state=state, metrics={"dev/metric": value})
        if state == "SUCCEEDED"
        else record({LR: n}, state=state)
        for n, (state, value) in enumerate(zip(states, dev, strict=True))
    ]
    further = record({LR: 1}, seed=1, metrics={"dev/metric": 0.1})
    table = build(spec(measure=measure("search_trials")), [*runs, further])
    assert table.cells["zo", "sst2"].mean == pytest.approx(shown)
    one = build(spec(measure=measure("search_trials")), runs[:1])
    assert one.cells["zo", "sst2"].state is CellState.NOT_PLANNED
