"""Labels and titles are made from the configurations of the trials behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plan.common import PLACES, changed, configs, named, problem
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.results import tables
from zo_sweeps.schedule.ledger import Standing

pytestmark = pytest.mark.unit


def rows(plan: Plan) -> list[str]:
    return [plan.grid.label(block) for block in plan.grid.blocks]


def numbers(*overrides: str) -> set[tuple[str, str]]:
    composer = Composer(overrides)
    made = tables.tables(build(composer, PLACES), composer, Standing())
    return {key for table in made for key, cell in table.cells.items() if cell.published is not None}


def test_a_value_in_a_label_is_the_one_that_runs() -> None:
    assert rows(named("low_rank"))[:2] == ["Gaussian (MeZO, q=4)", "Rank 1 (q=4)"]
    plan = named("low_rank", "estimator.q=1")
    assert rows(plan) == ["Gaussian (MeZO, q=1)", "Rank 1 (q=1)", "LOZO, rank 2, V held 50 steps (q=1)"]
    assert rows(named("low_rank", "estimator.q=2,4"))[0] == "Gaussian (MeZO, q=2,4)"
    assert all("q=1" in trial.label for trial in plan.every.values()), "the trials' own names too"


def test_a_scale_that_changes_what_a_row_or_column_promises_is_named_behind_its_label() -> None:
    plan = named("pezo_table4", "scale=smoke")
    assert {config.split.shots for config in configs(plan)} == {4}
    assert all(label.endswith(" → split.shots=4") for label in rows(plan))
    assert [*named("pezo_table3", "scale=smoke").labels.values()] == ["k=16", "k=256"], "no scale changes a column"
    assert named("pezo_table5", "scale=smoke").title.endswith("at k=4")


def test_an_edit_of_a_whole_column_or_row_is_named_behind_its_label() -> None:
    edited = named("prge_table9", "grid.columns.NF4={precision: fp16}")
    assert edited.labels["NF4"] == "NF4 → precision=fp16"
    block = named("llama2_superglue", "task=rte", "grid.blocks.zo_full={label: Mine, fixed: {estimator: {q: 4}}}")
    assert rows(block)[4] == "Mine → estimator.q=4"
    assert "zo_full" in block.relabelled
    method = named("quickstart", "grid.blocks.zero_shot={fixed: {method: mezo}}")
    assert rows(method)[0] == "Zero-shot → method=mezo", "what a method chooses goes without saying"


def test_an_edit_of_what_the_whole_grid_fixes_is_in_titles_and_notes() -> None:
    plan = named("llama2_superglue", "task=rte", "grid.fixed.model=mistral_7b")
    assert plan.title == "P-RGE Table 2, Mistral-7B"
    assert "set on the command line: grid.fixed.model=mistral_7b" in plan.caveats
    assert not numbers("+grid=llama2_superglue", "task=rte", "grid.fixed.model=mistral_7b")


@pytest.mark.parametrize(
    "override", ["task.display=SST-2", "model.display=OPT-6.7B", "++grid.fixed.task.display=SST-2"]
)
def test_a_printed_name_is_no_option(override: str) -> None:
    with pytest.raises(UserError, match=r"display is the printed name of what runs.*a file of your own"):
        named("sensitive_table1a", override)


def test_no_column_takes_the_numbers_of_another_by_its_label() -> None:
    every = numbers("+grid=pezo_table4")
    assert ("base_k16_mezo", "RTE") in every
    relabelled = numbers("+grid=pezo_table4", "++grid.columns.SST-2.label=RTE")
    assert relabelled == {cell for cell in every if cell[1] != "SST-2"}
    renamed = numbers("+grid=prge_table9", "grid.tables.weights.rows.tinyllama=Llama2-7b")
    assert {block for block, _ in renamed} == {"llama2"}


def test_a_value_that_a_column_is_given_renames_the_column_and_the_rows_that_fix_another() -> None:
    plan = named("prge_fig5", "++grid.columns.seq64_b1={precision: fp16}")
    assert {name for name, label in plan.labels.items() if "→" in label} == {"seq64_b1"}
    assert plan.relabelled == {name for name in plan.grid.blocks if "fp16" not in name}
    assert plan.grid.label("tinyllama_int8_zo").endswith(" → precision=fp16,int8"), "its other columns are as written"


def test_a_row_that_names_the_form_of_a_program_says_that_none_runs() -> None:
    plan = named("prge_table4", "device=cpu")
    assert plan.grid.label("seed") == "Seed form → device=cpu"
    assert plan.grid.label("dual") == "Dual-Forwarding → device=cpu"


def test_titles_say_what_runs() -> None:
    assert named("prge_table3").title.startswith("P-RGE Table 3, step time on Jetson Orin Nano (8 GB), nf4, random")
    assert named("prge_table3", "device=cpu").title == "P-RGE Table 3, step time on CPU, nf4, random weights"
    assert "on ExecuTorch (CPU), fp16" in named("prge_table4", "device=executorch").title
    assert "trained weights" in named("prge_table9", "model=demo", "grid.relabel=true").title
    other = named("sensitive_fig5_rte", "task=wic")
    assert {table.title for table in other.grid.tables.values()} == {f"SensZOQ Figure 5{x}, WiC" for x in "ab"}
    two = named("pezo_table5", "model=opt_1b3,opt_2b7", "task=rte")
    assert two.title == "PeZO Table 5, OPT-1.3B and OPT-2.7B at k=16"


def test_a_label_whose_columns_disagree_on_its_value_is_refused(tmp_path: Path) -> None:
    grid = changed(axes={"task": ["demo_remarks", "timing"]})
    grid["blocks"]["zo"] |= {"label": "ZO (q={estimator.q})", "per_task": {"timing": {"estimator": {"q": 4}}}}
    text = problem(tmp_path, grid)
    assert "the label of a row names one value, and its columns have several: 'ZO (q=2)' at demo_remarks" in text
    grid["blocks"]["zo"] |= {"label": "ZO (q={estimator.qq})", "per_task": {}}
    assert "no trial has 'estimator.qq'" in problem(tmp_path, grid)


@pytest.mark.parametrize("text", ["{estimater.q}", "q={estimater.q} of {model.display}", "{estimater}"])
def test_a_misspelt_part_in_the_braces_of_a_label_or_title_is_refused(tmp_path: Path, text: str) -> None:
    labelled = changed()
    labelled["blocks"]["zo"]["label"] = text
    for grid in (labelled, changed(title=text)):
        said = problem(tmp_path, grid)
        assert f"unknown part of a trial 'estimater' in the text {text!r}" in said
        assert "did you mean 'estimator'?" in said


def test_a_row_that_is_left_out_is_named_by_what_it_would_run() -> None:
    plan = named("low_rank", "perturbation.rank=1")
    (note,) = (line for line in plan.caveats if "leaves out" in line)
    assert "LOZO, rank 2, V held 50 steps (q=4)" in note


def test_the_name_of_a_method_chooses_the_method() -> None:
    with pytest.raises(UserError, match=r"no row of grid prge_table3 agrees with method=mezo"):
        named("prge_table3", "method.name=mezo")
    assert {config.method.name for config in configs(named("prge_table3"))} == {"prge"}
    assert {*named("quickstart", "method.name=prge").every} == {*named("quickstart", "method=prge").every}
