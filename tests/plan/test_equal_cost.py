"""Grids that compare methods at equal cost: steps from examples, rates from a row's own, and rows that join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.plan.common import changed, configs, named, planned
from zo_sweeps.core.errors import UserError

pytestmark = pytest.mark.unit
COST = {"train": {"examples": 4800, "eval_every": 1600, "batch": 8}}
LEAGUE: dict[str, Any] = {
    "fixed": {"model": "demo", "prompt": "mezo", **COST},
    "rates": [0.33, 1, 3],
    "blocks": {
        "mezo": {"fixed": {"method": "mezo", "update": {"lr": 2e-4}}},
        "zero": {"fixed": {"method": "zero_shot"}},
    },
    "tables": {"accuracy": {"layout": "accuracy"}},
}


def league(**top: Any) -> dict[str, Any]:
    """LEAGUE with some of its parts replaced."""
    return changed(**{**LEAGUE, **top})


@pytest.mark.parametrize(
    ("fixed", "steps", "every"),
    [
        ({"method": "mezo"}, 300, 100),  # two points of eight examples
        ({"method": "prge", "estimator": {"q": 4}}, 75, 25),
        ({"method": "fzoo"}, 66, 22),  # nine points: 66 whole steps
        ({"method": "loren"}, 100, 34),  # six points; three evaluations, the last at the end
        (
            {"method": "grzo", "train": {"batch": 1}},
            150,
            50,
        ),  # sixteen directions, each at two points of its own example
        ({"method": "fo_full"}, 200, 67),  # a forward and a backward pass, which is two
        ({"method": "fo_lora_fa_layerwise"}, 150, 50),  # and the layers once more
        ({"method": "fo_full_8bit"}, 150, 50),
    ],
)
def test_examples_give_the_steps(tmp_path: Path, fixed: dict[str, Any], steps: int, every: int) -> None:
    (config,) = configs(planned(tmp_path, league(blocks={"one": {"fixed": fixed}}, rates=[])))
    assert (config.train.steps, config.train.eval_every) == (steps, every)
    alike = {
        **fixed,
        "train": {"batch": 8, **fixed.get("train", {}), "steps": steps, "eval_every": every, "examples": None},
    }
    (same,) = configs(planned(tmp_path, league(blocks={"one": {"fixed": alike}}, rates=[])))
    assert same.trial_id() == config.trial_id(), "how the steps were given is no part of a trial"


def test_given_steps_replace_examples(tmp_path: Path) -> None:
    grid = league(rates=[])
    assert configs(planned(tmp_path, grid, "train.steps=7"), "mezo")[0].train.steps == 7
    assert configs(planned(tmp_path, grid, "scale=smoke"), "mezo")[0].train.steps < 20
    with pytest.raises(UserError, match="gives the steps"):
        planned(tmp_path, grid, "train.steps=7", "train.examples=100")


def test_rates_are_factors_of_a_rows_own(tmp_path: Path) -> None:
    rates = lambda plan, block: [config.update.lr for config in configs(plan, block)]
    plan = planned(tmp_path, league())
    assert rates(plan, "mezo") == [6.6e-05, 2e-4, 6e-4]
    assert len(configs(plan, "zero")) == 1
    assert {cell.hyperparameters.get("update.lr") for cell in plan.cells if cell.block == "mezo"} == {
        6.6e-05,
        2e-4,
        6e-4,
    }
    own = league()
    own["blocks"]["mezo"]["axes"] = {"update": {"lr": [0.5]}}
    del own["blocks"]["mezo"]["fixed"]["update"]
    assert rates(planned(tmp_path, own), "mezo") == [0.5]
    assert rates(planned(tmp_path, league(), "update.lr=0.25"), "mezo") == [0.25]


def test_a_row_joins_by_one_override_and_stands_in_the_tables(tmp_path: Path) -> None:
    plan = planned(tmp_path, league(), "+grid.entrants.mezo_rademacher={estimator:{eps:[1e-3,1e-2]}}")
    settings = [(config.estimator.eps, config.update.lr) for config in configs(plan, "mezo_rademacher")]
    assert settings == [(eps, lr) for eps in (1e-3, 1e-2) for lr in (3.3e-07, 1e-6, 3e-6)]
    assert [*plan.grid.tables["accuracy"].rows] == ["mezo", "zero", "mezo_rademacher"]
    with pytest.raises(UserError, match="mezo of grid"):
        planned(tmp_path, league(), "+grid.entrants.mezo={}")
    with pytest.raises(UserError, match="unknown method 'mezzo'"):
        planned(tmp_path, league(), "+grid.entrants.mezzo={}")


def test_the_rows_that_are_named_run_alone_beside_a_method_that_joins(tmp_path: Path) -> None:
    plan = planned(tmp_path, league(), "grid.only=[mezo,mezo_rademacher]", "+grid.entrants.mezo_rademacher={}")
    assert {cell.block for cell in plan.cells} == {"mezo", "mezo_rademacher"}
    assert "left out: zero" in plan.caveats
    same = {cell.trial_id for cell in planned(tmp_path, league()).cells if cell.block == "mezo"}
    assert same == {cell.trial_id for cell in plan.cells if cell.block == "mezo"}
    with pytest.raises(UserError, match="unknown block 'meso'"):
        planned(tmp_path, league(), "grid.only=[meso]")


def test_a_table_with_published_numbers_names_its_rows() -> None:
    with pytest.raises(UserError, match="has no rows in grid pezo_table3"):
        named("pezo_table3", "grid.tables.accuracy.rows={}")
