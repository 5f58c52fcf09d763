"""Overrides of what rows and columns promise: rows that agree stay, others are left out or run under other labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.plan.common import PLACES, changed, configs, named, planned, problem
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.plan.as_written import altered
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.results import tables
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tables.build import LARGEST, RANK
from zo_sweeps_report import sweep_figures

pytestmark = pytest.mark.unit


def rows(plan: Plan) -> list[str]:
    return [plan.grid.label(block) for block in plan.grid.blocks]


def note(plan: Plan, override: str) -> str:
    (line,) = (caveat for caveat in plan.caveats if caveat.startswith(f"{override} leaves out"))
    return line


def test_an_override_keeps_the_rows_that_agree_and_names_the_others() -> None:
    plan = named("llama2_superglue", "task=rte", "estimator.q=4")
    costs = {f"cost_q{mode}{ours}" for mode in ("", "_inner") for ours in ("", "_ours")}
    assert {*plan.grid.blocks} == {"zero_shot", "fo_full", "fo_full_8bit", "fo_lora_fa", "zo_lora_fa_q", *costs}
    assert {*plan.grid.blocks} == {cell.block for cell in plan.cells}
    assert {config.estimator.budget for config in configs(plan) if config.method.kind.estimates} == {4}
    assert "ZO-Full (q=1); ZO-LoRA-FA (q=1)" in note(plan, "estimator.q=4")
    assert all("(q=1)" not in label for table in plan.grid.tables.values() for label in table.rows.values())


def test_an_axis_that_a_label_sums_up_is_restricted_and_never_replaced() -> None:
    kept = named("llama2_superglue", "task=rte", "estimator.q=1,4")
    several = [c for c in kept.cells if c.block == "zo_lora_fa_q"]
    budgets = {kept.every[c.trial_id].config.to_json()["estimator"]["q"] for c in several}
    assert budgets == {4}
    assert "ZO-LoRA-FA (q>1)" not in rows(named("llama2_superglue", "task=rte", "estimator.q=1"))


def test_a_row_keeps_its_model_and_a_model_s_own_keys_are_part_of_it() -> None:
    plan = named("pezo_table5", "model=opt_1b3")
    assert {label.partition(",")[0] for label in rows(plan)} == {"OPT-1.3B"}
    with pytest.raises(UserError, match=r"no row of grid pezo_table5 agrees with model\.path=/x"):
        named("pezo_table5", "model.path=/x")


def test_a_column_keeps_its_value() -> None:
    plan = named("prge_table9", "precision=fp16")
    assert list(plan.labels.values()) == ["FP16"]
    assert "FP32; INT8; NF4" in note(plan, "precision=fp16")
    assert set(named("prge_table9", "precision.name=fp16").every) == set(plan.every)


def test_a_grid_in_which_nothing_agrees_is_refused_with_the_way_out() -> None:
    with pytest.raises(UserError, match=r"no row of grid pezo_table4 agrees with task=demo_remarks.*relabel=true"):
        named("pezo_table4", "task=demo_remarks")


def test_a_method_promises_the_members_that_its_preset_chooses() -> None:
    plan = named("quickstart", "perturbation=rademacher")
    assert rows(plan) == ["Zero-shot", "FO-Adam, full", "FO-LoRA-FA", "FO-LoRA-FA, layer by layer"], (
        "they draw no directions"
    )
    assert set(named("quickstart", "perturbation=gaussian").every) == set(named("quickstart").every)


@pytest.mark.parametrize(
    ("grid", "override"),
    [
        ("prge_table3", "space=lora"),
        ("prge_fig5", "method=fo_sgd_lora_fa"),
        ("prge_table6", "update=momentum"),
        ("sensitive_fig1_inference", "method=zero_shot"),
    ],
)
def test_the_method_that_the_whole_grid_fixes_is_promised_by_every_row(grid: str, override: str) -> None:
    with pytest.raises(UserError, match=f"no row of grid {grid} agrees with {override} in the command line"):
        named(grid, override)


def test_a_label_of_a_mask_or_a_precision_holds_it() -> None:
    static = named("sensitive_table1a", "task=rte", "space.refresh=100")
    assert not any("static" in label for label in rows(static))
    assert "ZO, Sensitive (task, static)" not in rows(named("sensitive_table1a", "task=rte", "space.source=text"))
    nf4 = rows(named("sensitive_table1a", "task=rte", "precision=nf4"))
    assert nf4
    assert all(label.startswith("NF4") for label in nf4)
    with pytest.raises(UserError, match=r"no row .* agrees with precision=fp32.*grid.relabel=true"):
        named("sensitive_table1a", "task=rte", "precision=fp32")


def test_a_member_without_the_option_that_a_column_fixes_leaves_the_column_out(tmp_path: Path) -> None:
    columns = {"2^8": {"perturbation": {"k": 8}}, "2^9": {"perturbation": {"k": 9}}, "B=2": {"train": {"batch": 2}}}
    grid = changed(columns=columns, axes={})
    grid["blocks"] = {"zo": {"label": "ZO", "axes": {"perturbation": ["pezo_pool", "gaussian"], "method": ["mezo"]}}}
    both = planned(tmp_path, grid, "perturbation=gaussian")
    assert list(both.labels) == ["B=2"]
    assert "2^8; 2^9" in note(both, "perturbation=gaussian")
    assert set(planned(tmp_path, grid, "perturbation=pezo_pool").labels) == {*columns}
    renamed = planned(tmp_path, grid, "perturbation=gaussian", "grid.relabel=true").labels
    assert renamed["2^8"] == "2^8 → perturbation=gaussian"
    assert renamed["B=2"] == "B=2"


def test_a_column_of_densities_is_one_to_a_full_space_and_stays(tmp_path: Path) -> None:
    plan = named("sensitive_fig5_rte", "estimator=rge")
    assert "full" in plan.grid.blocks


def test_an_option_that_only_rows_left_out_have_is_no_unknown_key() -> None:
    plan = named("pezo_table5", "perturbation.bits=8")
    assert not any("On-the-fly" in label for label in rows(plan))
    assert "On-the-fly" in note(plan, "perturbation.bits=8")
    with pytest.raises(
        UserError, match=r"perturbation\.bits is an option of no row's perturbation.*pezo_onthefly has it"
    ):
        named("quickstart", "perturbation.bits=8")


def test_a_row_that_is_edited_on_the_command_line_says_so_in_its_label() -> None:
    edit = "grid.blocks.zo_full.fixed.estimator.q=4"
    plan = named("llama2_superglue", "task=rte", edit)
    assert "ZO-Full (q=1) → estimator.q=4" in rows(plan)
    assert ("zo_full", "rte") not in published("+grid=llama2_superglue", "task=rte", edit)
    named_anew = named("llama2_superglue", "task=rte", edit, "grid.blocks.zo_full.label=Mine")
    assert "Mine → estimator.q=4" in rows(named_anew)


def test_amounts_change_under_the_same_label_but_for_the_length_that_a_column_names(tmp_path: Path) -> None:
    plan = named("quickstart", "train.steps=3", "split.test=7")
    assert rows(plan) == rows(named("quickstart"))
    grid = changed(columns={"T=32": {"train": {"max_length": 32}}, "T=64": {"train": {"max_length": 64}}}, axes={})
    assert list(planned(tmp_path, grid, "train.max_length=64").labels) == ["T=64"]
    assert list(planned(tmp_path, grid, "scale=smoke", "train.steps=1").labels) == ["T=32", "T=64"]
    long = changed(columns={"T=128": {"train": {"max_length": 128}}}, axes={})
    assert {c.train.max_length for c in configs(planned(tmp_path, long, "scale=smoke"))} == {128}


def test_a_cell_of_its_own_is_named_with_row_and_column(tmp_path: Path) -> None:
    grid = changed(axes={"task": ["demo_remarks", "timing"]})
    grid["blocks"]["zo"]["per_task"] = {"timing": {"train": {"batch": 2}}}
    plan = planned(tmp_path, grid, "train.batch=4")
    assert {cell.task for cell in plan.cells} == {"demo_remarks"}
    assert "ZO at timing" in note(plan, "train.batch=4")


def test_relabelled_rows_and_columns_say_what_they_run(tmp_path: Path) -> None:
    plan = named("llama2_superglue", "task=rte", "estimator.q=4", "grid.relabel=true")
    assert "ZO-Full (q=1) → estimator.q=4" in rows(plan)
    assert "ZO-LoRA-FA (q>1), inner loop, cost" in rows(plan), "what agrees keeps its label"
    assert plan.grid.tables["accuracy"].rows["zo_lora_fa_q1"] == "ZO-LoRA-FA (q=1) → estimator.q=4"
    columns = named("prge_table9", "precision=fp16", "grid.relabel=true").labels
    assert columns == {
        "FP32": "FP32 → precision=fp16",
        "FP16": "FP16",
        "INT8": "INT8 → precision=fp16",
        "NF4": "NF4 → precision=fp16",
    }


# --- published numbers


def published(*overrides: str) -> dict[tuple[str, str], float]:
    composer = Composer(overrides)
    (first, *_) = tables.tables(build(composer, PLACES), composer, Standing())
    return {key: cell.published for key, cell in first.cells.items() if cell.published is not None}


def test_a_published_number_stands_only_where_the_settings_are_those_of_the_grid() -> None:
    table = "+grid=prge_table9"
    every = published(table)
    assert len(every) == 8
    assert published(table, "device=cpu", "grid.seeds=[3]", "data.dir=/x") == every
    assert published(table, "precision=fp16") == {key: v for key, v in every.items() if key[1] == "FP16"}
    for other in ("model=random_llama", "precision=fp16"):
        changed_cells = published(table, other, "grid.relabel=true")
        assert set(changed_cells) <= {key for key in every if key[1] == "FP16" and other.startswith("precision")}
    assert published(table, "split.test=5") == published(table, "prompt=mezo") == {}
    assert published(table, "scale=smoke") == {}


def test_a_restricted_search_keeps_its_published_number_and_another_value_loses_it() -> None:
    few = published("+grid=bytebots_table1", "update.lr=1e-4")
    assert set(few) == {("prge", "accuracy")}, "MeZO's search has no such value"


def test_a_machine_that_the_grid_names_is_part_of_its_numbers() -> None:
    every = published("+grid=prge_table3")
    assert len(every) > 16
    assert published("+grid=prge_table3", "device=jetson-orin-nano") == every
    assert published("+grid=prge_table3", "device=cpu") == {}
    phone = published("+grid=prge_table4")
    assert len(phone) == 8
    assert published("+grid=prge_table4", "device=oneplus-12") == phone
    assert published("+grid=prge_table4", "device=executorch") == {}
    assert "set on the command line: device=cpu" in named("prge_table3", "device=cpu").caveats


def test_a_published_rank_stands_among_all_rows_and_columns_only() -> None:
    def ranks(*overrides: str) -> set[str]:
        return {row for row, column in published("+grid=sensitive_table1a", *overrides) if column == RANK}

    every = ranks()
    assert len(every) > 5
    assert ranks("grid.seeds=[3]") == every
    assert ranks("task=rte") == ranks("~grid.blocks.icl") == ranks("split.test=5") == set()
    assert ("zero_shot", "rte") in published("+grid=sensitive_table1a", "task=rte")


def test_a_published_largest_value_stands_among_all_columns_only() -> None:
    def largest(*overrides: str) -> set[str]:
        composer = Composer(["+grid=prge_fig5", *overrides])
        made = tables.tables(build(composer, PLACES), composer, Standing())
        return {
            row for table in made for (row, column), cell in table.cells.items() if column == LARGEST and cell.published
        }

    every = largest()
    assert len(every) == 2
    assert largest("train.batch=8") == largest("~grid.columns.seq64_b1") == set()
    assert largest("~grid.blocks.tinyllama_fp16_zo") == every, "they are of other rows"


def test_published_points_of_a_figure_follow_the_same_rule() -> None:
    def points(*overrides: str) -> list[Any]:
        composer = Composer(["+grid=prge_fig4", *overrides])
        plan = build(composer, PLACES)
        made = sweep_figures.figures(plan, composer, Standing())
        drawn = [series for figure in made for panel in figure.panels for series in panel.series]
        return [x for series in drawn if series.is_published for x in series.x]

    every = points()
    assert every
    assert points("grid.seeds=[5]") == every
    assert len(points("train.batch=16")) == len(every), "they are of B=16"
    assert points("train.batch=1") == points("scale=smoke") == []


def test_nothing_is_composed_again_where_no_override_changes_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Composer, "as_written", lambda self: pytest.fail("composed"))
    composer = Composer(["+grid=quickstart", "seed=3", "executor=inline"])
    assert altered(build(composer, PLACES), composer) == frozenset()


def test_a_row_that_names_its_device_keeps_what_computes_it() -> None:
    engine = "device.runtime=executorch"
    plan = named("bytebots_frameworks", engine)
    assert rows(plan) == ["ExecuTorch, sequential", "ExecuTorch, P-RGE"]
    assert "PyTorch, sequential; PyTorch, P-RGE" in note(plan, engine)
    assert rows(named("bytebots_frameworks", "device.runtime=torch"))[0] == "PyTorch, sequential"
    relabelled = named("bytebots_frameworks", engine, "grid.relabel=true")
    assert rows(relabelled)[0] == f"PyTorch, sequential → {engine}"
    with pytest.raises(UserError, match=r"no row of grid bytebots_frameworks agrees with device\.form=dual"):
        named("bytebots_frameworks", "device.form=dual")
    assert len(rows(named("quickstart", engine))) == 7, "its rows name no device"


def test_a_row_named_by_its_form_keeps_it_on_another_device() -> None:
    plan = named("prge_table4", "device=executorch", "device.form=dual")
    assert rows(plan) == ["Dual-Forwarding"]
    assert "Seed form; Seed form, one point per forward" in note(plan, "device.form=dual")
    assert len(rows(named("prge_table4", "device=executorch"))) == 3


def test_a_cell_whose_row_names_a_device_is_altered_by_another_runtime_or_form() -> None:
    def changed_blocks(*overrides: str) -> set[str]:
        composer = Composer(["+grid=bytebots_frameworks", "grid.relabel=true", *overrides])
        return {block for block, _ in altered(build(composer, PLACES), composer)}

    assert changed_blocks("device.runtime=executorch") == {"torch_sequential", "torch_prge"}
    assert changed_blocks("device.form=dual") >= {"executorch_sequential", "executorch_prge"}
    assert changed_blocks("device.memory_gb=64") == set()


@pytest.mark.parametrize("grid", ["quickstart", "demo_sst2", "methods"])
def test_every_trained_row_of_a_grid_of_our_own_has_as_many_examples_per_step(grid: str) -> None:
    trained = [config for config in configs(named(grid)) if config.train.steps]
    assert {config.method.kind.estimates for config in trained} == {True, False}
    directions = [config.estimator.budget if config.method.kind.estimates else 1 for config in trained]
    assert {config.train.batch * q for config, q in zip(trained, directions, strict=True)} == {16}


def test_a_misspelt_member_is_said_before_what_agrees(tmp_path: Path) -> None:
    assert "unknown perturbation 'rademachr'" in problem(tmp_path, changed(), "perturbation=rademachr")
