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
    with pytest.raises(UserError, match=r"train\.steps and train\.examples are both set in the command line; omit one"):
        planned(tmp_path, grid, "train.steps=7", "train.examples=100")
    few = configs(planned(tmp_path, grid, "scale=smoke", "train.examples=640"), "mezo")[0].train
    assert (few.steps, few.examples) == (40, 640), "the command line wins over the scale"


def amounts(folder: Path, of_grid: dict[str, Any], of_block: dict[str, Any], *overrides: str, **top: Any) -> list[Any]:
    """Return (steps, B, E) of the trials of a block with q = 2; of_grid, of_block: what these fix of `train`."""
    block = {
        "label": "E={train.effective_batch}",
        "fixed": {"method": "prge", "estimator": {"q": 2}, "train": of_block},
    }
    top = {"axes": {"task": ["demo_remarks"]}, "tables": {}, **top}
    fixed = {"model": "demo", "prompt": "mezo", "train": {"eval_every": 2, **of_grid}}
    plan = planned(folder, changed(fixed=fixed, blocks={"one": {**block, **top.pop("block", {})}}, **top), *overrides)
    return [(one.train.steps, one.train.batch, one.train.effective_batch) for one in configs(plan)]


FEW, LEAST = {"steps": 7}, {"batch": 2}


@pytest.mark.parametrize(
    ("of_grid", "of_block", "overrides", "found"),
    [
        ({**FEW, **LEAST}, {}, [], (7, 2, 4)),
        ({**FEW, **LEAST}, {"effective_batch": 16}, [], (7, 8, 16)),
        ({**FEW, "effective_batch": 16}, LEAST, [], (7, 2, 4)),
        ({**FEW, **LEAST}, {}, ["train.effective_batch=8"], (7, 4, 8)),
        ({**FEW, "effective_batch": 16}, {}, ["train.batch=3"], (7, 3, 6)),
        ({"examples": 64, **LEAST}, FEW, [], (7, 2, 4)),
        ({"examples": 64, **LEAST}, {"steps": 9}, ["train.steps=7"], (7, 2, 4)),
        ({**FEW, **LEAST}, {"examples": 64}, [], (8, 2, 4)),
        ({**FEW, **LEAST}, {}, ["train.examples=64"], (8, 2, 4)),
    ],
)
def test_of_two_ways_to_set_an_amount_the_more_specific_one_runs(
    tmp_path: Path, of_grid: dict[str, Any], of_block: dict[str, Any], overrides: list[str], found: tuple[int, ...]
) -> None:
    assert amounts(tmp_path, of_grid, of_block, *overrides) == [found]


def test_a_column_and_a_cell_replace_the_other_way_to_set_an_amount_and_its_axis(tmp_path: Path) -> None:
    columns = {"E=8": {"train": {"effective_batch": 8}}, "B=3": {"train": {"batch": 3}}}
    block = {"label": "", "axes": {"train": {"effective_batch": [4, 16]}}}
    assert amounts(tmp_path, FEW, {}, columns=columns, axes={}, block=block) == [(7, 4, 8), (7, 3, 6)]
    cell = {"per_task": {"demo_remarks": {"train": {"effective_batch": 16}}}}
    assert amounts(tmp_path, FEW, LEAST, block=cell) == [(7, 8, 16)]


def test_the_batch_of_a_method_s_preset_gives_way_to_an_effective_batch(tmp_path: Path) -> None:
    fixed = {"method": "decomfl", "estimator": {"q": 2}, "train": {"steps": 7, "eval_every": 7}}
    plan = planned(
        tmp_path, league(blocks={"one": {"fixed": fixed}}, fixed={"model": "demo"}), "train.effective_batch=8"
    )
    assert {config.train.batch for config in configs(plan)} == {4}


def test_a_row_whose_amount_is_changed_in_the_other_way_says_so_in_its_label(tmp_path: Path) -> None:
    def label(train: dict[str, Any], override: str) -> str:
        block = {"label": "Row", "fixed": {"method": "mezo", "train": train}}
        return planned(tmp_path, league(blocks={"one": block}, rates=[]), override).grid.blocks["one"].label

    assert label({"batch": 2}, "train.effective_batch=4") == "Row → train.batch=4"
    assert label({"effective_batch": 2}, "train.batch=4") == "Row → train.effective_batch=4"


@pytest.mark.parametrize(
    ("of_grid", "of_block", "overrides", "said"),
    [
        (
            {},
            {"train": {"batch": 2, "effective_batch": 8}},
            [],
            "train.effective_batch and train.batch are both set in gr",
        ),
        (
            {},
            {"train": {"steps": 2, "examples": 8}},
            [],
            "train.steps and train.examples are both set in grid tiny, block",
        ),
        ({}, {}, ["split.train=8", "split.shots=4"], "split.train and split.shots are both set in the command line"),
        ({"split": {"shots": 4}}, {"split": {"dev": 4}}, [], "split.dev says nothing beside split.shots in grid tiny"),
        ({}, {}, ["train.batch=2", "train.effective_batch=8"], "are both set in the command line; omit one of them"),
    ],
)
def test_two_ways_to_set_an_amount_side_by_side_are_refused(
    tmp_path: Path, of_grid: dict[str, Any], of_block: dict[str, Any], overrides: list[str], said: str
) -> None:
    fixed = {"model": "demo", "prompt": "mezo", **of_grid}
    grid = league(fixed=fixed, blocks={"one": {"fixed": {"method": "mezo", **of_block}}}, rates=[])
    with pytest.raises(UserError, match=said.replace(".", r"\.")):
        planned(tmp_path, grid, *overrides)


def test_shots_of_a_row_replace_the_sizes_of_the_grid_and_no_shots_give_them_back(tmp_path: Path) -> None:
    fixed = {"model": "demo", "prompt": "mezo", "split": {"train": 4}}
    grid = league(fixed=fixed, blocks={"one": {"fixed": {"method": "mezo", "split": {"shots": 3}}}}, rates=[])
    assert {config.split.shots for config in configs(planned(tmp_path, grid))} == {3}
    grid = league(
        fixed={"model": "demo", "split": {"shots": 4}}, blocks={"one": {"fixed": {"method": "mezo"}}}, rates=[]
    )
    plan = planned(tmp_path, grid, "split.train=8", "split.test=9")
    (config,) = configs(plan)
    assert config.split.shots == 4, "a size for many grids says nothing of one with shots"
    assert "set on the command line: split.test=9" in plan.caveats
    (config,) = configs(planned(tmp_path, grid, "split.train=8", "split.shots=null"))
    assert (config.split.train, config.split.shots) == (8, None)


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
    assert not planned(tmp_path, league(), "grid.rates=[1,3]").caveats
    own = league()
    own["blocks"]["mezo"]["axes"] = {"update": {"lr": [0.5]}}
    del own["blocks"]["mezo"]["fixed"]["update"]
    assert rates(planned(tmp_path, own), "mezo") == [0.5]
    assert "no row takes grid.rates" in planned(tmp_path, own, "grid.rates=[1,3]").caveats[-1]
    assert rates(planned(tmp_path, league(), "update.lr=0.25"), "mezo") == [0.25]


def test_rates_are_factors_of_the_rate_of_the_method_that_a_column_or_a_cell_chooses(tmp_path: Path) -> None:
    def rates(*overrides: str, **top: Any) -> list[float]:
        grid = league(**{"rates": [1, 3], "tables": {}, "blocks": {"one": {"fixed": {"method": "mezo"}}}, **top})
        return [config.update.lr for config in configs(planned(tmp_path, grid, *overrides)) if config.steps]

    columns = {name: {"method": name} for name in ("mezo", "prge", "fo_full", "zero_shot")}
    assert rates(columns=columns, axes={}, blocks={"one": {}}) == [1e-6, 3e-6, 1e-4, 3e-4, 1e-5, 3e-5]
    cell = {"fixed": {"method": "mezo"}, "per_task": {"demo_remarks": {"method": "fo_full"}}}
    assert rates(blocks={"one": cell}) == [1e-5, 3e-5]
    assert rates("method=fo_full", "grid.relabel=true") == [1e-5, 3e-5]
    given = {"fixed": {"update": {"lr": 0.1}}, "axes": {"method": ["mezo", "prge"]}}
    assert rates(blocks={"one": given}) == [0.1, 0.3] * 2, "the row's own rate"


@pytest.mark.parametrize("axes", [{"method": ["mezo", "prge"]}, {"update": ["sgd", "momentum"]}])
def test_rates_of_several_methods_in_one_row_are_refused(tmp_path: Path, axes: dict[str, Any]) -> None:
    with pytest.raises(
        UserError, match=r"rates are factors of the update\.lr of one .* is an axis in grid tiny, block one"
    ):
        planned(tmp_path, league(blocks={"one": {"axes": axes}}))


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
