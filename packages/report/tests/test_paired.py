"""Rows of a table in pairs, by seed."""

from __future__ import annotations

import pytest

from tests.tables.examples import LR, record, spec
from tests.tables.test_stats import COLUMNS, ROWS
from zo_sweeps.tables import build
from zo_sweeps.tables.stats import interval
from zo_sweeps_report.paired import differences

pytestmark = pytest.mark.unit


def test_rows_are_paired_by_seed_and_column_where_both_have_a_value() -> None:
    records = []
    for seed, (one, two) in enumerate([(0.90, 0.80), (0.95, 0.82), (0.85, 0.81)]):
        records += [record({}, seed, block="a", test=one), record({}, seed, block="b", test=two)]
    records += [record({}, seed, block="a", column="rte", test=0.7) for seed in (0, 5)]
    records += [record({}, seed, block="b", column="rte", test=0.6) for seed in (5, 6)]
    (found,) = differences(build(spec(rows=ROWS, columns=COLUMNS), records))
    expected = [10.0, 13.0, 4.0, 10.0]  # of rte only seed 5 is in both
    assert (found.row, found.other, found.n) == ("a", "b", 4)
    assert found.mean == pytest.approx(sum(expected) / 4)
    assert (found.low, found.high) == pytest.approx(interval(expected))
    assert found.excludes_zero


def test_a_constant_offset_between_columns_does_not_widen_a_paired_interval() -> None:
    records = []
    for column, base in (("sst2", 0.9), ("rte", 0.5)):
        for seed, noise in enumerate((0.01, -0.01, 0.02)):
            records += [record({}, seed, block="a", column=column, test=base + noise)]
            records += [record({}, seed, block="b", column=column, test=base - 0.05)]
    (found,) = differences(build(spec(rows=ROWS, columns=COLUMNS), records))
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.low < 5  # the columns are 40 apart


def test_a_run_that_serves_every_seed_is_paired_with_each() -> None:
    records = [record({}, 0, block="a", test=0.5, also=(1, 2))]
    records += [record({LR: 1e-4}, seed, block="b", test=0.6 + seed / 100) for seed in range(3)]
    (found,) = differences(build(spec(rows=ROWS), records))
    assert (found.n, found.mean) == (3, pytest.approx(-11.0))


def test_rows_without_a_common_pair_are_left_out_and_one_pair_has_no_interval() -> None:
    apart = [record({}, 0, block="a"), record({}, 1, block="b")]
    assert differences(build(spec(rows=ROWS), apart)) == []
    (found,) = differences(build(spec(rows=ROWS), [apart[0], record({}, 0, block="b", test=0.8)]))
    assert (found.n, found.low, found.excludes_zero) == (1, None, False)
