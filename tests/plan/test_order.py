"""The rounds of `--order information`, of small plans made by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from zo_sweeps.config.schema import SelectConfig
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.plan.build import Cell
from zo_sweeps.plan.order import ORDERS, described, middle

pytestmark = pytest.mark.unit
LR = [1e-5, 1e-4, 1e-3]


@dataclass
class Trial:
    trial_id: str


@dataclass
class Grid:
    select: SelectConfig


class Plan:
    """As much of a plan as an order reads."""

    def __init__(self, cells: list[Cell], absent: frozenset[str] = frozenset(), mode: str = "min") -> None:
        self.cells, self.grid = tuple(cells), Grid(SelectConfig("dev/loss", mode))
        ids = dict.fromkeys(cell.trial_id for cell in cells)
        self.trials = tuple(Trial(one) for one in ids if one not in absent)


def grid(rows: str = "ab", columns: str = "xyz", seeds: int = 3, **shared: str) -> list[Cell]:
    """Rows x columns x LR x seeds; `shared`: a row -> the row whose trials it has."""
    return [
        Cell(row, column, seed, {"update.lr": lr}, f"{shared.get(row, row)}{column}{lr:g}/{seed}")
        for row, column, lr, seed in product(rows, columns, LR, range(seeds))
    ]


def rounds(plan: Any, outcomes: dict[str, Outcome] | None = None) -> dict[str, int]:
    return ORDERS["information"](plan, outcomes or {})


def done(trial_id: str, loss: float | None) -> Outcome:
    return Outcome(trial_id, TrialState.SUCCEEDED if loss is not None else TrialState.DIVERGED, {"dev/loss": loss or 0})


def test_each_row_and_column_gets_one_number_then_the_search_then_further_seeds_the_first_settings_first() -> None:
    plan: Any = Plan(grid())
    due = rounds(plan)
    assert [*due] == [trial.trial_id for trial in plan.trials]
    assert sorted(one for one, n in due.items() if n == 0) == [f"{r}{c}0.0001/0" for r in "ab" for c in "xyz"]
    assert {one.rpartition("/")[2] for one, n in due.items() if n < 2} == {"0"}
    assert [sum(n == wanted for n in due.values()) for wanted in range(6)] == [6, 12, 6, 6, 12, 12]
    assert {one.partition("/")[0][2:] for one, n in due.items() if n in (2, 3)} == {"0.0001"}
    assert set(ORDERS["grid"](plan, {}).values()) == {0}
    assert (
        described(plan, due)
        == "order: 6 trials for a first number in each of 6 cells, then 12 for the search, then 36 further seeds"
    )
    assert described(plan, ORDERS["grid"](plan, {})) == ""


def test_the_rounds_do_not_depend_on_the_order_of_keys_or_the_seed_of_a_hash() -> None:
    cells = [
        Cell("a", "x", seed, dict(zip(names, values, strict=True)), f"{sorted(zip(names, values, strict=True))}/{seed}")
        for values in product(LR, [1e-3, 1e-2], range(1))
        for seed in range(2)
        for names in [("update.lr", "estimator.eps", "k")]
    ]
    turned = [Cell(c.block, c.task, c.seed, dict(reversed(c.hyperparameters.items())), c.trial_id) for c in cells]
    plan, other = (Plan(one) for one in (cells, turned))
    assert rounds(plan) == rounds(other)
    first = next(one for one, n in rounds(plan).items() if n == 0)
    assert ("update.lr', 0.0001" in first, "estimator.eps', 0.001" in first) == (True, True), (
        "lower of two in the middle"
    )


def test_a_trial_of_several_cells_has_the_earliest_of_their_rounds_and_runs_once() -> None:
    cells = grid(rows="ab", columns="x", b="a")
    plan = Plan(cells)
    assert len(rounds(plan)) == 9
    more = [*cells, Cell("c", "x", 2, {}, "ax0.001/2")]  # the only trial of its cell
    due = rounds(Plan(more))
    assert due["ax0.001/2"] == 0
    assert {one: n for one, n in due.items() if n != rounds(plan)[one]} == {"ax0.001/2": 0}


def test_the_best_setting_so_far_is_the_one_that_is_repeated_and_one_that_diverged_is_not_begun_with() -> None:
    cells = grid(rows="a", columns="x")
    losses = {"ax1e-05/0": 0.5, "ax0.0001/0": 0.7, "ax0.001/0": None}
    due = rounds(Plan(cells), {one: done(one, loss) for one, loss in losses.items()})
    assert [one for one, n in due.items() if n in (0, 2, 3)] == ["ax1e-05/0", "ax1e-05/1", "ax1e-05/2"]
    due = rounds(Plan(cells, mode="max"), {one: done(one, loss) for one, loss in losses.items()})
    assert due["ax0.0001/0"] == 0
    due = rounds(Plan(cells), {"ax0.0001/0": done("ax0.0001/0", None)})
    assert [one for one, n in due.items() if n == 0] == ["ax1e-05/0"], "the middle of the others"


def test_of_trials_that_cannot_run_here_none_is_waited_for() -> None:
    absent = frozenset({"ax0.0001/0", "ax0.0001/1", "ax0.0001/2", "ax1e-05/0"})
    due = rounds(Plan(grid(rows="a", columns="x"), absent))
    assert not due.keys() & absent
    assert [one for one, n in due.items() if n == 0] == ["ax1e-05/1"]


@pytest.mark.parametrize("seed", range(20))
def test_any_grid_every_trial_once_and_the_first_round_covers_every_cell(seed: int) -> None:
    chance = random.Random(seed)
    cells = [cell for cell in grid("abcd", "wxyz", 4) if chance.random() < 0.5]
    cells += [Cell("e", c.task, c.seed, c.hyperparameters, c.trial_id) for c in cells if c.block == "a"]
    plan: Any = Plan(cells, frozenset(c.trial_id for c in cells if chance.random() < 0.2))
    due = rounds(plan)
    ids = {trial.trial_id for trial in plan.trials}
    assert due.keys() == ids
    wanted = {(c.block, c.task) for c in cells if c.trial_id in ids}
    assert {(c.block, c.task) for c in cells if due.get(c.trial_id) == 0} == wanted


def test_the_middle_of_numbers_is_by_size_and_of_names_the_first() -> None:
    settings = {f"{lr:g} {name}": {"lr": lr, "name": name} for lr in (1.0, 0.01, 0.1) for name in ("z", "a")}
    assert middle(settings) == "0.1 z"
    assert middle({"only": {}}) == "only"
