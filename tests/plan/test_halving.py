"""Successive halving on the grids as they are: rungs where dev is evaluated, and published numbers that stay."""

from __future__ import annotations

import pytest

from tests.plan.common import configs, named
from zo_sweeps.config.composer import Composer
from zo_sweeps.methods.parts import Train
from zo_sweeps.plan.as_written import altered

HALVING = "train.halving=[0.5]"


@pytest.mark.parametrize(
    ("shares", "steps", "every", "rungs"),
    [
        ((0.5,), 20_000, 500, (10_000,)),
        ((0.5,), 900, 300, (600,)),
        ((0.1, 0.2, 0.5), 900, 300, (300, 600)),
        ((0.7,), 10, 1, (7,)),  # 0.7 * 10 is a little below 7, and 0.3 * 10 above 3
        ((0.3,), 10, 1, (3,)),
        ((0.5,), 500, 500, ()),
        ((0.9,), 900, 300, ()),
    ],
)
def test_a_rung_is_the_next_evaluation_before_the_last_step(
    shares: tuple[float, ...], steps: int, every: int, rungs: tuple[int, ...]
) -> None:
    assert Train(halving=shares, steps=steps, eval_every=every).rungs == rungs


@pytest.mark.parametrize("grid", ["prge_table3", "methods"])
def test_it_is_planned_on_every_grid_and_rows_without_a_rung_run_in_full(grid: str) -> None:
    halved, whole = named(grid, HALVING), named(grid)
    assert [cell.block for cell in halved.cells] == [cell.block for cell in whole.cells]
    for config in configs(halved):
        assert bool(config.train.halving) == bool(config.train.halving_among) == bool(config.train.rungs)
    without = {i for i, trial in halved.every.items() if not trial.config.train.halving}
    assert without <= {*whole.every}, "the same trial as without the option"


def test_the_note_says_where_and_published_numbers_stay() -> None:
    assert "train.halving compares where dev is evaluated next: step 600 of 900" in named("methods", HALVING).caveats
    assert not any("compares where" in line for line in named("pezo_table3", HALVING).caveats)
    composer = Composer(["+grid=pezo_table3", HALVING])
    assert altered(named("pezo_table3", HALVING), composer) == frozenset()
    assert altered(
        named("pezo_table3", "train.eval_every=250"), Composer(["+grid=pezo_table3", "train.eval_every=250"])
    )
