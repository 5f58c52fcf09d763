"""What `papers` says of an item: how much of the grid as written has a result, over all sweeps of it in a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.plan.common import named
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.plan.as_written import beside_written
from zo_sweeps.results.papers import Item, ItemProgress, items, progress_of, run_of
from zo_sweeps.schedule.ledger import Standing

pytestmark = pytest.mark.unit
SCORES = {"dev/loss": 0.5, "dev/metric": 0.5, "test/metric": 0.5}
Measured = Callable[[Trial], Mapping[str, float]]


def item(reference: str) -> Item:
    (found,) = (one for one in items() if one.reference == reference)
    return found


OWN = item("pezo/table3")


def progress(of: Item, *sweeps: tuple[str, ...], metrics: Measured = lambda trial: SCORES) -> ItemProgress:
    """The progress after sweeps of the item's grid with these overrides; `metrics`: of a trial; {}: not run."""
    (grid,) = of.grids
    plans = [named(grid, *overrides) for overrides in sweeps]
    standing = Standing()
    for trial_id, trial in {name: trial for plan in plans for name, trial in plan.every.items()}.items():
        if found := metrics(trial):
            standing.states[trial_id] = TrialState.SUCCEEDED
            standing.outcomes[trial_id] = Outcome(trial_id, TrialState.SUCCEEDED, found)
    composers = [Composer([f"+grid={grid}", *overrides]) for overrides in sweeps]
    launched = [beside_written(plan, composer) for plan, composer in zip(plans, composers, strict=True)]
    return progress_of(of, {grid: run_of(launched, composers[-1], standing)}, {})


def measured(trial: Trial) -> dict[str, float]:
    """Everything that the tables of these grids show."""
    return {**SCORES, **dict.fromkeys(("seconds_per_step", "memory/total_bytes", "luts", "ffs", "brams"), 1.0)}


def test_a_sweep_of_a_part_of_the_grid_is_not_complete_and_says_of_what_it_is_a_part() -> None:
    part = progress(OWN, ("update.lr=1e-6", "grid.seeds=[13]"), metrics=measured)
    assert part.state == "0 of 8 cells, 8 of 120 trials (8 of 24 settings and 1 of 5 seeds)", "a cell has three rates"
    other = progress(OWN, ("update.lr=1e-6,1e-3", "grid.seeds=[13]"), metrics=measured)
    assert other.state == "0 of 8 cells, 8 with other settings", "the rate 1e-3 is none of the grid's"
    assert progress(OWN, (), metrics=measured).state == "complete"
    assert progress(OWN, (), metrics=lambda trial: {}).state == "not run"
    some = progress(OWN, (), metrics=lambda trial: measured(trial) if "seed 13" in trial.label else {})
    assert some.state == "0 of 8 cells, 24 of 120 trials (1 of 5 seeds)"


def test_every_sweep_of_a_folder_counts_and_what_one_left_out_another_may_have() -> None:
    both = ("grid.seeds=[13,21]", "~grid.blocks.ours"), ("grid.seeds=[42,87,100]", "~grid.blocks.ours")
    assert progress(OWN, *both, metrics=measured).state == "6 of 8 cells, 90 of 120 trials (18 of 24 settings)"
    rest = ("grid.only=[ours]",)
    assert progress(OWN, *both, rest, metrics=measured).state == "complete"
    assert progress(OWN, rest, *both, metrics=measured).state == "complete"


def test_a_table_of_costs_without_a_cost_is_not_complete_and_has_no_deviation_of_another_table() -> None:
    sweep = "task=sst2", "~grid.tables.runtime"
    found = progress(item("prge/table10"), sweep)
    assert found.state.startswith("0 of 30 cells"), "trials have a result, and none has a time"
    assert found.deviation is None
    accuracy = progress(item("prge/table1"), sweep)
    assert accuracy.state == "6 of 36 cells, 30 of 180 trials (30 of 180 settings)"
    assert accuracy.deviation is not None


def test_a_table_with_a_column_per_metric_has_a_cell_per_circuit() -> None:
    assert progress(item("pezo/table6"), (), metrics=measured).state == "complete"
    one = progress(item("pezo/table6"), (), metrics=lambda trial: measured(trial) if trial.block == "mezo" else {})
    assert one.state == "1 of 4 cells, 1 of 4 trials (1 of 4 settings)"


def test_the_largest_deviation_is_of_a_cell_that_counts() -> None:
    def scores(trial: Trial) -> dict[str, float]:
        if trial.block == "gaussian":
            return {**SCORES, "test/metric": 0.8}
        first = trial.config.to_json()["seed"] == 13
        return {**SCORES, "test/metric": 0.0} if trial.block == "uniform" and first else {}

    found = progress(item("pezo/table3"), (), metrics=scores)
    assert found.state == "2 of 8 cells, 36 of 120 trials (12 of 24 settings and 1 of 5 seeds)"
    assert found.deviation is not None
    assert found.deviation.row == "Gaussian", "one seed of the other row is further away, and is no whole cell"
