"""The grids of the repository, counted; and what the command line does to a grid."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.plan.common import changed, configs, named, of, planned, problem, write_grid
from zo_sweeps.config.composer import Composer
from zo_sweeps.plan.build import build

COUNTS = {  # grid -> trials, table entries (a zero-shot trial serves every seed); the others: tests/papers/test_grids
    "quickstart": (25, 26),
    "demo_sst2": (40, 42),
    "methods": (312, 320),
    "precisions": (220, 228),
    "llama2_superglue": (783, 783),
    "low_rank": (240, 240),
    "league": (3938, 3950),
    "results": (425, 435),
    "rewards": (333, 345),
    "federated": (320, 320),
    "last_blocks": (360, 360),
    "sums": (2, 2),
}
BLOCKS = {  # P-RGE Table 8: learning rates x q x tasks
    "zero_shot": 9,
    "fo_full": 27,
    "fo_full_8bit": 27,
    "fo_lora_fa": 27,
    "zo_full": 27,
    "zo_lora_fa_q1": 36,
    "zo_lora_fa_q": 144,
    **{"cost_full": 27, "cost_q1": 36, "cost_q1_inner": 36, "cost_q": 144, "cost_q_inner": 144},
    **{"cost_full_ours": 9, "cost_q1_ours": 9, "cost_q1_inner_ours": 9, "cost_q_ours": 36, "cost_q_inner_ours": 36},
}


def test_every_reason_why_a_trial_cannot_run_is_kept(tmp_path: Path) -> None:
    small = ("device=oneplus-12", "device.client=zo_client", "device.memory_gb=0.1")
    plan = planned(tmp_path, changed(), *small, "task=sst2", f"data.dir={tmp_path}")
    assert not plan.trials
    for trial_id, reasons in plan.reasons.items():
        assert reasons[-1].endswith("GB, and a OnePlus 12 (12 GB) has 0.1")
        assert len(reasons) == 2, "no data either"
        assert plan.missing[trial_id] == "; ".join(reasons)


@pytest.mark.parametrize("grid", COUNTS)
def test_a_grid_comes_to_the_trials_it_was_written_for(grid: str) -> None:
    plan = named(grid)
    assert (plan.name, len(plan.every), len(plan.cells)) == (grid, *COUNTS[grid])


def test_the_rows_of_prge_table_2_have_the_search_grid_of_its_table_8() -> None:
    plan = named("llama2_superglue")
    assert Counter(cell.block for cell in plan.cells) == BLOCKS
    searched = {(c.block, c.task): set() for c in plan.cells}
    for cell in plan.cells:
        searched[cell.block, cell.task].add(cell.hyperparameters.get("update.lr"))
    assert searched["zo_lora_fa_q", "sst2"] == {1e-4, 5e-4, 1e-3, 5e-3}
    for low in ("rte", "multirc", "winogrande"):
        assert searched["zo_lora_fa_q", low] == searched["zo_lora_fa_q1", low] == {1e-5, 5e-5, 1e-4, 5e-4}
    assert searched["fo_full", "squad"] == {1e-7, 5e-7, 8e-7}
    assert searched["fo_full", "copa"] == {1e-5, 5e-5, 8e-5}
    for config in (of(trial) for trial in plan.every.values() if not trial.block.startswith("cost_")):
        train, kind = config.train, config.method.kind
        if kind.estimates:
            assert train.batch
            assert (train.steps, train.batch * config.estimator.budget, train.eval_every) == (20000, 16, 500)
        if kind.backpropagates:
            assert (train.steps, train.batch) == (1000, 8)


@pytest.mark.multiprocess
def test_a_plan_is_the_same_in_another_process() -> None:
    code = "from tests.plan.common import named; print(' '.join(named('quickstart').every))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=REPO,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] == list(named("quickstart").every)


def test_a_zero_shot_row_is_one_trial_for_all_seeds() -> None:
    plan = named("quickstart", "grid.seeds=[0,1,2,3]")
    ids = {cell.trial_id for cell in plan.cells if cell.block == "zero_shot"}
    assert len(ids) == 1
    assert len([cell for cell in plan.cells if cell.block == "zero_shot"]) == 4


def test_every_row_of_rewards_that_trains_generates_as_many_texts() -> None:
    for config in (of(trial) for trial in named("rewards").every.values()):
        kind, train = config.method.kind, config.train
        if kind.trains:
            assert train.batch
            texts = train.steps * train.batch * (kind.answers or config.estimator.evaluations(1))
            assert texts == 2880, config.method.name


def test_two_blocks_that_ask_for_the_same_trial_get_one(tmp_path: Path) -> None:
    grid = changed()
    grid["blocks"]["again"] = {**grid["blocks"]["zo"], "label": "under another name"}
    plan = planned(tmp_path, grid)
    assert len(plan.every) == 2
    assert Counter(cell.block for cell in plan.cells) == {"zo": 2, "again": 2}


def test_excluded_combinations_are_not_planned(tmp_path: Path) -> None:
    grid = changed(exclude=[{"update": {"lr": 0.1}, "estimator": {"q": 2}}])
    grid["blocks"]["zo"]["axes"]["estimator"] = {"q": [1, 2]}
    del grid["blocks"]["zo"]["fixed"]["estimator"]
    plan = planned(tmp_path, grid)
    found = {(c.hyperparameters["estimator.q"], c.hyperparameters["update.lr"]) for c in plan.cells}
    assert found == {(1, 0.01), (1, 0.1), (2, 0.01)}


def test_a_task_can_have_its_own_list(tmp_path: Path) -> None:
    grid = changed(axes={"task": ["demo_remarks", "sst2_sent"]})
    grid["blocks"]["zo"]["per_task"] = {"sst2_sent": {"update": {"lr": [0.5]}, "train": {"steps": 8}}}
    plan = planned(tmp_path, grid)
    assert {(c.task, c.hyperparameters.get("update.lr")) for c in plan.cells} == {
        ("demo_remarks", 0.01),
        ("demo_remarks", 0.1),
        ("sst2_sent", 0.5),
    }
    assert {t.task: t.steps for t in plan.every.values()} == {"demo_remarks": 4, "sst2_sent": 8}


# --- the command line


def test_a_task_on_the_command_line_takes_the_place_of_the_grids_tasks() -> None:
    assert {c.task for c in named("llama2_superglue", "task=rte").cells} == {"rte"}
    assert {c.task for c in named("llama2_superglue", "task=rte,copa").cells} == {"rte", "copa"}
    low = named("llama2_superglue", "task=rte")
    assert {c.hyperparameters["update.lr"] for c in low.cells if c.block == "zo_lora_fa_q1"} == {1e-5, 5e-5, 1e-4, 5e-4}


def test_one_value_replaces_an_axis_and_several_make_a_new_one() -> None:
    one = named("quickstart", "update.lr=0.5")
    assert {config.update.lr for config in configs(one) if config.steps} == {0.5}
    assert all("update.lr" not in cell.hyperparameters for cell in one.cells)
    several = named("quickstart", "update.lr=0.5,0.25,0.125")
    zo = [c for c in several.cells if c.block == "zo_lora_fa_q1"]
    assert sorted(c.hyperparameters["update.lr"] for c in zo) == [0.125, 0.125, 0.25, 0.25, 0.5, 0.5]
    fo = {c.hyperparameters["update.lr"] for c in several.cells if c.block == "fo_lora_fa"}
    assert fo == {0.5, 0.25, 0.125}


def test_groups_can_be_an_axis_too() -> None:
    plan = named("quickstart", "space=lora,lora_fa", "grid.relabel=true")
    zo = [c for c in plan.cells if c.block == "zo_lora_fa_q1"]
    assert {c.hyperparameters["space"] for c in zo} == {"lora", "lora_fa"}
    spaces = {of(plan.every[c.trial_id]).space.name for c in zo}
    assert spaces == {"lora", "lora_fa"}


def test_seeds_can_be_given_as_a_seed_or_as_the_grids_list() -> None:
    assert {c.seed for c in named("quickstart", "seed=7").cells} == {7}
    assert {c.seed for c in named("quickstart", "seed=7,8").cells} == {7, 8}
    assert {c.seed for c in named("quickstart", "grid.seeds=[3]").cells} == {3}


def test_the_command_line_wins_over_the_scale_and_the_scale_over_the_grid() -> None:
    def sizes(*overrides: str) -> set[tuple[int, int, int]]:
        planned = configs(named("quickstart", *overrides), "zo_lora_fa_q4")
        return {(config.train.steps, config.train.eval_every, config.split.dev) for config in planned}

    assert sizes() == {(60, 30, 500)}
    assert sizes("scale=smoke") == {(4, 2, 16)}
    assert sizes("scale=smoke", "train.steps=6", "split.dev=9") == {(6, 2, 9)}
    assert sizes("train.steps=6") == {(6, 6, 500)}, "evaluation is at the last step at the latest"


def test_a_scale_is_named_in_the_caption_and_so_is_what_was_set_by_hand() -> None:
    text = " ".join(named("quickstart", "scale=smoke", "update.lr=0.5").caveats)
    assert "scale=smoke" in text
    assert "update.lr=0.5" in text
    assert named("quickstart").caveats == ()


def test_the_effective_batch_is_held_over_q() -> None:
    plan = named("quickstart", "estimator.q=1,2,4,8,16", "grid.relabel=true")
    zo = configs(plan, "zo_lora_fa_q1")
    assert {(config.estimator.budget, config.train.batch) for config in zo} == {
        (1, 16),
        (2, 8),
        (4, 4),
        (8, 2),
        (16, 1),
    }
    given = named("quickstart", "estimator.q=3", "train.batch=2", "grid.relabel=true")
    assert {config.train.batch for config in configs(given, "zo_lora_fa_q1")} == {2}


def test_an_option_is_passed_over_where_the_blocks_member_has_none() -> None:
    plan = named("demo_sst2", "space.rank=4")
    ranks = {trial.block: getattr(of(trial).space, "rank", None) for trial in plan.every.values()}
    assert ranks["zo_full"] is None
    assert ranks["zo_lora_fa_q1"] == ranks["fo_lora_fa"] == 4


def test_a_key_that_a_mapping_has_not_yet_is_added_with_a_plus() -> None:
    plan = named("quickstart", "model=random_llama", "+model.arch.rope_theta=5000.0")
    assert {config.model.arch["rope_theta"] for config in configs(plan)} == {5000.0}
    plain = named("quickstart", "model=random_llama")
    assert not set(plan.every) & set(plain.every)


def test_a_block_can_be_left_out() -> None:
    assert "fo_lora_fa" not in {c.block for c in named("quickstart", "~grid.blocks.fo_lora_fa").cells}


# --- problems


def test_all_problems_are_listed_at_once_each_with_its_blocks(tmp_path: Path) -> None:
    grid = changed()
    blocks = grid["blocks"]
    blocks["batch"] = {"fixed": {"method": "prge", "estimator": {"q": 3}, "update": {"lr": 0.1}}}
    blocks["mode"] = {"fixed": {"method": "mezo", "evaluation": {"mode": "both"}}}
    blocks["misspelt"] = {"fixed": {"method": "mezzo"}}
    blocks["key"] = {"fixed": {"method": "mezo", "train": {"stepz": 3}}}
    blocks["type"] = {"fixed": {"method": "mezo", "train": {"steps": "many"}}}
    blocks["option"] = {"fixed": {"method": "mezo", "estimator": {"queries": 3}}}
    text = problem(tmp_path, grid)
    for part in (
        "not a multiple of q=3",
        "evaluation.mode=both cannot hold several points of space 'full'",
        "unknown method 'mezzo'",
        "did you mean 'mezo'?",
        "unknown key 'train.stepz'",
        "train.steps='many' has the wrong type",
        "unknown key 'estimator.queries'",
    ):
        assert part in text
    assert text.startswith("6 problems in grid 'tiny':")
    for name in ("batch", "mode", "misspelt"):
        assert f"(block {name})" in text


def test_every_wrong_option_of_a_block_is_listed(tmp_path: Path) -> None:
    grid = changed()
    grid["blocks"]["zo"]["fixed"]["estimator"] = {"q": 0, "eps": -1.0}
    first, *listed = problem(tmp_path, grid).splitlines()
    assert first == "2 problems in grid 'tiny':"
    assert listed == [
        "  - estimator.q of rge must be at least 1, not 0 in grid tiny, block zo (block zo)",
        "  - estimator.eps of rge must be above 0, not -1.0 in grid tiny, block zo (block zo)",
    ]


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["update.lr=nan"], "not a finite number"),
        (["update.lr=-1"], "update.lr of sgd must be at least 0, not -1"),
        (["estimator.q=0", "grid.relabel=true"], "estimator.q of rge must be at least 1, not 0"),
        (["estimator.eps=0"], "estimator.eps of rge must be above 0, not 0"),
        (["train.steps=0"], "train.steps must be at least 1"),
        (["train.batch=0"], "train.batch must be at least 1"),
        (["train.eval_every=0"], "train.eval_every must be at least 1"),
        (["train.max_length=0"], "train.max_length must be at least 1"),
        (["split.dev=0"], "split.dev must be at least 1, not 0"),
        (["split.seed=-1"], "split.seed must be from 0 to"),
        (["grid.seeds=[0,-1]"], "seed must be from 0 to"),
        (["grid.seeds=[4294967296]"], "seed must be from 0 to"),
        (["seed=5", "grid.seeds=[1,2]"], "seed and grid.seeds are both set"),
        (["grid.seeds=[]"], "has no trials"),
        (["evaluation.mode=diagonal"], "unknown mode 'diagonal'"),
        (["update=adam", "method=mezo", "update.schedule=cosin", "grid.relabel=true"], "unknown schedule 'cosin'"),
        (["method=fo_lora_fa", "precision=fp16", "device=cpu", "grid.relabel=true"], "fp16 on a CPU is not supported"),
    ],
)
def test_what_cannot_be_run_is_said(tmp_path: Path, overrides: list[str], part: str) -> None:
    assert part in problem(tmp_path, changed(), *overrides)


def test_an_axis_that_is_not_a_list_or_is_fixed_too_is_a_mistake(tmp_path: Path) -> None:
    grid = changed()
    grid["blocks"]["zo"]["axes"]["update"]["lr"] = 0.1
    assert "must be a list" in problem(tmp_path, grid)
    grid["blocks"]["zo"]["axes"]["update"]["lr"] = []
    assert "is empty" in problem(tmp_path, grid)
    grid["blocks"]["zo"]["axes"] = {"estimator": {"q": [1, 2]}}
    assert "both fixed and an axis" in problem(tmp_path, grid)


@pytest.mark.parametrize(("grid", "seeds"), [("methods", 5), ("precisions", 3)])
def test_every_trained_row_of_the_comparison_has_the_same_search_and_work(grid: str, seeds: int) -> None:
    """Three learning rates a factor of three apart, as many seeds, and the same number of forwarded examples."""
    for scale in ("paper", "short"):
        plan = named(grid, f"scale={scale}")
        work, looks = set(), set()
        for block in plan.grid.blocks:
            cells = [cell for cell in plan.cells if cell.block == block]
            if not of(plan.every[cells[0].trial_id]).method.kind.trains:
                continue
            rates = sorted({cell.hyperparameters["update.lr"] for cell in cells})
            assert [len(rates), len(cells)] == [3, 3 * seeds * len(plan.labels)], block
            assert all(3 <= high / low * (1 + 1e-9) <= 3.4 for low, high in pairwise(rates)), block
            for config in configs(plan, block):
                kind = config.method.kind
                passes = config.estimator.evaluations(1) if kind.estimates else 3
                work.add(config.train.steps * config.train.batch * passes)
                looks.add(-(-config.train.steps // config.train.eval_every))
        assert (len(work), looks) == (1, {3}), scale


def test_missing_data_is_not_a_problem_but_is_said() -> None:
    plan = named("demo_sst2")
    assert plan.trials == ()
    assert all("data.dir" in why for why in plan.missing.values())


def test_a_thousand_trials_plan(tmp_path: Path) -> None:
    grid = changed(seeds=list(range(10)))
    grid["blocks"]["zo"]["axes"] = {
        "update": {"lr": [i / 1000 for i in range(1, 26)]},
        "estimator": {"eps": [1e-3, 1e-2, 3e-2, 1e-1]},
    }
    plan = planned(tmp_path, grid)
    assert len(plan.every) == len(plan.cells) == len(plan.trials) == 1_000


def test_a_composer_can_plan_twice() -> None:
    composer = Composer(["+grid=quickstart", "update.lr=0.1,0.2"])
    assert list(build(composer).every) == list(build(composer).every)


# --- what is left out


def test_a_block_that_is_left_out_leaves_the_tables_and_figures_and_the_table_says_so(tmp_path: Path) -> None:
    from zo_sweeps.results import tables as readout
    from zo_sweeps.schedule.ledger import Standing

    grid = changed()
    grid["blocks"]["other"] = {"label": "Other", "fixed": {"method": "mezo", "update": {"lr": 0.1}}}
    grid["tables"]["accuracy"]["rows"]["other"] = "Other"
    grid["tables"]["alone"] = {"layout": "accuracy", "rows": {"other": "Other"}}
    points = [{"series": "other", "x": 0.1, "y": 50.0}, {"series": "zo", "x": 0.1, "y": 51.0}]
    grid["figures"] = {
        "both": {"x": "update.lr", "series": {"zo": "", "other": ""}, "published": points},
        "alone": {"x": "update.lr", "series": {"other": ""}},
        "every": {"x": "update.lr"},
    }
    folder = write_grid(tmp_path, grid)
    composer = Composer(["+grid=tiny", "~grid.blocks.other"], [str(folder)])
    plan = build(composer)
    (table,) = readout.tables(plan, composer, Standing())
    assert [key for key, _ in table.spec.rows] == ["zo"]
    assert "left out: other" in plan.caveats
    assert set(plan.grid.figures) == {"both", "every"}
    assert plan.grid.figures["both"].published == points[1:]


@pytest.mark.parametrize("part", ["tables", "figures"])
def test_a_table_or_figure_of_a_block_that_there_is_not_is_refused_before_anything_runs(
    tmp_path: Path, part: str
) -> None:
    grid = changed()
    if part == "tables":
        grid["tables"]["accuracy"]["rows"]["zoo"] = "ZO"
    else:
        grid["figures"] = {"f": {"x": "update.lr", "series": {"zoo": "ZO"}}}
    assert "unknown block 'zoo'" in problem(tmp_path, grid)
    assert "did you mean 'zo'" in problem(tmp_path, grid)


def test_entries_that_an_override_makes_the_same_are_counted_for_the_reader(tmp_path: Path) -> None:
    grid = changed()
    grid["blocks"]["wide"] = {"label": "W", "fixed": {"method": "mezo", "update": {"lr": 0.1}, "model": "random_llama"}}
    grid["blocks"]["same"] = {"label": "S", "fixed": {"method": "mezo", "update": {"lr": 0.1}, "model": "demo"}}
    del grid["fixed"]["model"]
    assert not any("share" in caveat for caveat in planned(tmp_path, grid).caveats)
    found = planned(tmp_path, grid, "model=demo", "grid.relabel=true")
    assert "2 entries became identical to others under these overrides and share their trials" in found.caveats
