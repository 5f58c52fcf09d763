"""Successive halving on the grids as they are: rungs where dev is evaluated, and published numbers that stay."""

from __future__ import annotations

import pytest

from tests.plan.common import changed, configs, named, planned
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.parts import Train
from zo_sweeps.plan.as_written import altered
from zo_sweeps.plan.build import CONFIRMS
from zo_sweeps.schedule.halving import groups, searches
from zo_sweeps.schedule.snapshot import expected

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


SEARCH = {"select": {"seeds": 1}, "seeds": [0, 1, 2]}


def test_trials_of_further_seeds_are_others_and_name_what_they_depend_on(tmp_path) -> None:
    grid, whole = changed(**SEARCH), changed(seeds=[0, 1, 2])
    plan, without = planned(tmp_path, grid), planned(tmp_path, whole)
    first = [cell.trial_id for cell in plan.cells if cell.seed == 0]
    assert first == [cell.trial_id for cell in without.cells if cell.seed == 0], "they run in full"
    others = {cell.trial_id for cell in plan.cells if cell.seed > 0}
    assert len(others - {*without.every}) == 4
    assert {trial_id for trial_id, lines in plan.remarks.items() if CONFIRMS in lines} == others
    (search,) = searches(plan)
    assert [len(ids) for pair in search.settings for ids in pair] == [1, 2, 1, 2]
    shares = expected(plan.every.values())
    assert {trial_id for trial_id, share in shares.items() if share == 0.5} == others, "one of two settings"
    assert sum(shares.values()) == 4, "both at the first seed, one at each of the others"
    assert {*expected([plan.every[min(others)]]).values()} == {1.0}, "its rival has been stopped"
    grid["blocks"]["zo"]["axes"]["update"]["lr"].append(1.0)
    again = planned(tmp_path, grid)
    assert not others & {*again.every}, "another search may select another setting"
    assert {*first} < {*again.every}


def test_a_row_without_a_search_runs_every_seed(tmp_path) -> None:
    grid = changed(**SEARCH)
    grid["blocks"]["zo"]["axes"]["update"]["lr"] = [0.1]
    assert searches(planned(tmp_path, grid)) == []
    del grid["select"]
    assert {*planned(tmp_path, grid).every} == {*planned(tmp_path, changed(**grid)).every}


def test_rungs_are_of_the_search_and_the_confirmed_setting_runs_in_full(tmp_path) -> None:
    plan = planned(tmp_path, changed(**SEARCH), "train.halving=[0.5]")
    by_seed = {cell.seed: plan.every[cell.trial_id].config.train for cell in plan.cells}
    assert (bool(by_seed[0].rungs), by_seed[1].rungs) == (True, ())
    assert len(groups(plan)) == len(searches(plan)) == 1
    assert {len(ids) for ids in groups(plan)[0].settings} == {1}


@pytest.mark.parametrize("seeds", [0, -1])
def test_a_search_has_a_first_seed(tmp_path, seeds) -> None:
    with pytest.raises(UserError, match=f"must be at least 1, not {seeds}"):
        planned(tmp_path, changed(select={"seeds": seeds}, seeds=[0, 1]))
