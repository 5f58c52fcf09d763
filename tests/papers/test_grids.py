"""The grids of the papers: each composes, has the trials it should, and fits the table it is printed beside."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.papers.common import composer, plan
from tests.plan.test_grids import COUNTS
from tests.tables.test_renderings import document
from zo_sweeps.config.composer import conf_dir
from zo_sweeps.core.fingerprint import canonical_json
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.resolve import flatten
from zo_sweeps.results import tables as readout
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tables import Table, to_html, to_latex
from zo_sweeps.tables.published import load
from zo_sweeps.tables.records import Rule

TRIALS = {
    "bytebots_frameworks": 16,
    "bytebots_table1": 7,
    "llama2_superglue": 783,
    "pezo_fig3_pool": 495,
    "pezo_fig3_rngs": 275,
    "pezo_fig4": 140,
    "pezo_table2": 16,
    "pezo_table2_flops": 16,
    "pezo_table3": 120,
    "pezo_table4": 1200,
    "pezo_table5": 180,
    "pezo_table6": 14,
    "prge_fig3": 108,
    "prge_fig4": 108,
    "prge_fig5": 216,
    "prge_table1": 504,
    "prge_table3": 64,
    "prge_table4": 24,
    "prge_table5": 36,
    "prge_table6": 32,
    "prge_table9": 8,
    "sensitive_8gib": 24,
    "sensitive_adam": 36,
    "sensitive_fig1": 16,
    "sensitive_fig1_inference": 5,
    "sensitive_fig5_copa": 93,
    "sensitive_fig5_rte": 93,
    "sensitive_fig5_wic": 93,
    "sensitive_fig6": 36,
    "sensitive_gradients": 9,
    "sensitive_table1a": 252,
    "sensitive_table1b": 252,
    "sensitive_table1c": 252,
}
SYSTEM = [
    name
    for name in TRIALS
    if name.startswith(("prge_fig", "prge_table4", "bytebots_f", "sensitive_fig1", "sensitive_8", "pezo_table2"))
    or name[-7:] in ("_table2", "_table3", "_table5", "_table9")
]
SYSTEM = [name for name in SYSTEM if name not in ("pezo_table3", "pezo_table5", "llama2_superglue")]
TASKS = {"SST-2": "sst2", "RTE": "rte", "CB": "cb", "BoolQ": "boolq", "WSC": "wsc", "WiC": "wic", "COPA": "copa"}
TASK_NAMES = {name: display for display, name in TASKS.items()}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def tables(grid: str) -> list[Table]:
    return readout.tables(plan(grid), composer(grid), Standing())


def configs(grid: str) -> list[TrialConfig]:
    return [TrialConfig.of(trial.config) for trial in plan(grid).every.values()]


def settings(grid: str, block: str) -> dict[str, Any]:
    """Column -> the configuration of a block's trial there."""
    planned = plan(grid)
    return {
        cell.task: TrialConfig.of(planned.every[cell.trial_id].config) for cell in planned.cells if cell.block == block
    }


def test_the_grids_of_the_papers_are_these() -> None:
    contents = {path.stem: yaml.safe_load(path.read_text()) for path in (conf_dir() / "grid").glob("*.yaml")}
    assert {name for name, grid in contents.items() if grid.get("paper")} == set(TRIALS)
    assert set(contents) - set(TRIALS) <= set(COUNTS), "counted there"


@pytest.mark.parametrize("grid", TRIALS)
def test_a_grid_has_its_number_of_trials_one_for_each_cell_setting_and_seed(grid: str) -> None:
    planned = plan(grid)
    assert len(planned.every) == TRIALS[grid]
    assert set(planned.missing) | {trial.trial_id for trial in planned.trials} == set(planned.every)
    assert {cell.trial_id for cell in planned.cells} == set(planned.every)
    line = "full" if grid.startswith("sensitive_fig5") else ""  # a line over all columns
    cells = [cell for cell in planned.cells if cell.block != line]
    assert len(cells) == len({cell.trial_id for cell in cells}), "two different cells share a trial"
    assert not planned.caveats, "the grid as written differs from itself"


def test_a_trial_id_stands_for_one_trial_in_all_grids() -> None:
    seen: dict[str, str] = {}
    for grid in TRIALS:
        for trial_id, trial in plan(grid).every.items():
            mine = canonical_json(TrialConfig.of(trial.config).identity())
            assert seen.setdefault(trial_id, mine) == mine


def test_memory_and_operations_of_pezo_s_table2_are_of_the_same_trials() -> None:
    assert set(plan("pezo_table2").every) == set(plan("pezo_table2_flops").every)


def test_figures_reuse_the_trials_of_the_tables_that_they_are_drawn_from() -> None:
    table = set(plan("sensitive_table1a").every)
    sgd = [cell for cell in plan("sensitive_adam").cells if cell.block == "sgd"]
    assert {cell.trial_id for cell in sgd} < table
    assert len(sgd) == 9
    ours = [cell for cell in plan("sensitive_fig6").cells if cell.block.endswith("_ours")]
    assert {cell.trial_id for cell in ours} < table
    assert len(ours) == 18
    # 0.1% on RTE: C4 (16 bit), task and random masks; and full ZO; three seeds each
    assert len(set(plan("sensitive_fig5_rte").every) & table) == 12


@pytest.mark.parametrize("task", ["rte", "wic", "copa"])
def test_full_zo_is_one_line_over_all_fractions_of_figure_5a(task: str) -> None:
    planned = plan(f"sensitive_fig5_{task}")
    line = [cell for cell in planned.cells if cell.block == "full"]
    assert len(line) == 5 * 3
    assert len({cell.trial_id for cell in line}) == 3, "three seeds, whatever the fraction"
    table = load("sensitive/table1a").rows["ZO / Full fine-tuning"]
    figure = planned.grid.figures["accuracy_5a"]
    shown = {point["x"]: point["y"] for point in figure.published if point["series"] == "full"}
    assert shown == dict.fromkeys(planned.labels, table[TASK_NAMES[task]])


@pytest.mark.parametrize("grid", TRIALS)
def test_every_block_is_in_a_table_or_a_figure(grid: str) -> None:
    layouts = plan(grid).grid
    shown = {block for table in layouts.tables.values() for block in table.rows}
    shown |= {block for figure in layouts.figures.values() for block in figure.series or layouts.blocks}
    assert shown == set(layouts.blocks)


@pytest.mark.parametrize("grid", ["pezo_fig3_pool", "pezo_fig3_rngs"])
def test_opt_in_figure_3_selects_as_in_table_5(grid: str) -> None:
    """By dev loss, the step as the setting; RoBERTa by dev accuracy, as in Table 4."""
    planned = plan(grid)
    for cell in planned.cells:
        chosen = TrialConfig.of(planned.every[cell.trial_id].config).train.select
        assert chosen == ("loss" if cell.block == "opt_sst2_k16" else "metric")
    rules = {table.spec.name: table.spec.rule for table in tables(grid)}
    by_metric, by_loss = Rule("dev/metric", "max"), Rule("dev/loss", "min")
    assert rules == {f"{grid}_accuracy": by_metric, f"{grid}_accuracy_opt": by_loss, f"{grid}_directions": by_metric}
    layouts = planned.grid.figures
    assert layouts["accuracy_opt"].select is not None
    assert (layouts["accuracy_opt"].select.metric, list(layouts["accuracy_opt"].series)) == (
        "dev/loss",
        ["opt_sst2_k16"],
    )


def test_figure_4_of_pezo_plots_the_training_loss() -> None:
    assert plan("pezo_fig4").grid.figures["loss"].y == "train_loss"
    assert [table.spec.measure.metric for table in tables("pezo_fig4")] == ["final_train_loss", "directions"]


def test_first_order_rows_are_evaluated_every_100_steps_and_every_500_on_squad() -> None:
    for block in ("fo_full", "fo_lora_fa"):
        for task, config in settings("llama2_superglue", block).items():
            assert config.train.eval_every == (500 if task == "squad" else 100)


NAMED = {  # what a label names -> the key that the block fixes: no override is held against what the grid fixes
    r"\bq=\d": "estimator.q",
    r"\bB=\d": "train.batch",
    r"\bk=\d": "split.shots",
    r"\d%": "space.density",
    r"C4|\btask\b|task-specific": "space.source",
    r"^(?!.*outliers).*(static|dynamic|fixed\))": "space.refresh",
    r"\b(16|4) bit|FP16|INT8|NF4|\bQ, ZO": "precision",
    r"\binner\b": "evaluation.mode",
    r"SparseAdd": "space.product",
    r"OPT-|Llama|RoBERTa|Mistral": "model",
    r"SST-2|RTE\b": "task",
    r"demonstrations|\bICL \(": "method.demonstrations",
}


@pytest.mark.parametrize("grid", TRIALS)
def test_what_a_label_names_is_fixed_by_its_block(grid: str) -> None:
    layouts = plan(grid).grid
    for block in layouts.blocks.values():
        own = {
            *flatten(block.fixed),
            *flatten(block.axes),
            *(key for one in block.per_task.values() for key in flatten(one)),
        }
        wrong = [key for named, key in NAMED.items() if re.search(named, block.label) and key not in own]
        assert not wrong, block.label


@pytest.mark.parametrize("grid", TRIALS)
def test_every_cell_of_a_cited_table_has_its_published_number(grid: str) -> None:
    for table in tables(grid):
        if not table.spec.published:
            continue
        source = load(table.spec.published)
        assert table.spec.published_rows
        for block, row in table.spec.published_rows.items():
            shown = [table.cells[block, key].published for key, _ in table.columns]
            assert (None in shown) == (None in source.rows[row].values()), "a hole that is not the paper's"
        assert source.reference == table.spec.published


@pytest.mark.parametrize("grid", TRIALS)
def test_the_file_says_where_it_comes_from(grid: str) -> None:
    text = (conf_dir() / "grid" / f"{grid}.yaml").read_text(encoding="utf-8")
    first = text.split("\n")[1]
    assert first.startswith("# ")
    paper = yaml.safe_load(text)["paper"]
    source = yaml.safe_load((conf_dir() / "paper" / f"{paper}.yaml").read_text())["paper"]
    assert source["id"] in first or source["name"] in first
    assert max(map(len, text.split("\n"))) <= 120 or grid == "llama2_superglue"


@pytest.mark.parametrize("grid", SYSTEM)
def test_time_and_memory_are_measured_on_random_weights_and_the_caption_says_so(grid: str) -> None:
    assert {config.model.source for config in configs(grid)} == {"random"}
    assert "random weights" in plan(grid).grid.title
    assert {config.task.name for config in configs(grid)} == {"timing"}


@pytest.mark.parametrize("grid", ["prge_table3", "prge_fig5", "prge_table9", "sensitive_8gib"])
def test_what_needs_quantized_weights_is_planned(grid: str) -> None:
    planned = plan(grid)
    assert {TrialConfig.of(trial.config).precision.name for trial in planned.trials} & {"int8", "nf4"}
    assert not any("weights cannot be stored" in why for why in planned.missing.values())


COSTS = [
    *("prge_table1", "llama2_superglue"),
    *("prge_fig3", "prge_fig4", "prge_fig5", "prge_table3", "prge_table5"),
    *("sensitive_8gib", "sensitive_fig1", "sensitive_fig6"),
    *("pezo_table2", "pezo_table2_flops"),
]


@pytest.mark.parametrize("grid", COSTS)
def test_a_row_of_cost_runs_the_paper_s_computation_or_is_ours_by_its_label(grid: str) -> None:
    planned = plan(grid)
    for cell in planned.cells:
        config = TrialConfig.of(planned.every[cell.trial_id].config)
        ours = planned.grid.label(cell.block).endswith(", ours")
        if grid in ("prge_table1", "llama2_superglue") and not cell.block.startswith("cost_"):
            continue
        assert cell.block.endswith("_ours") == ours
        assert (config.train.logits, config.train.packing) == (("answers", True) if ours else ("all", False))
        if config.method.kind.estimates and config.space.moves_base:
            assert config.evaluation.restore.value == ("exact" if ours else "in_place")
    grids = planned.grid
    shown = [(table.rows, table.footnotes) for table in grids.tables.values()]
    shown += [(figure.series or grids.blocks, figure.footnotes) for figure in grids.figures.values()]
    for blocks, footnotes in shown:
        if any(block.endswith("_ours") for block in blocks):
            assert any("logits at every position" in line for line in footnotes), blocks


@pytest.mark.parametrize("grid", ["prge_table1", "llama2_superglue"])
def test_a_row_of_cost_has_every_setting_that_its_search_may_select(grid: str) -> None:
    planned = plan(grid)
    blocks = {name: block for name, block in planned.grid.blocks.items() if name.startswith("cost_")}
    assert len(blocks) == 10

    def searched(block: str, column: str) -> set[tuple[Any, ...]]:
        cells = [cell.hyperparameters for cell in planned.cells if (cell.block, cell.task) == (block, column)]
        return {tuple(found.get(key) for key in ("estimator.q", "update.lr")) for found in cells}

    for name, block in blocks.items():
        for column in planned.labels:
            wanted = searched(block.setting_of, column)
            if name.endswith("_ours"):  # at one learning rate
                wanted = {(q, None) for q, _ in wanted}
            assert searched(name, column) == wanted
    for config in (TrialConfig.of(t.config) for t in planned.every.values() if t.block in blocks):
        assert config.train.batch is not None
        assert config.train.batch * config.estimator.budget == 16


def test_the_fp16_bars_of_prge_figure5_are_runs_of_its_figure3() -> None:
    fp16 = {cell.trial_id for cell in plan("prge_fig5").cells if "_fp16_" in cell.block}
    assert len(fp16) == 72
    assert fp16 < set(plan("prge_fig3").every)
    assert fp16 < set(plan("prge_fig4").every)


def test_speed_ups_stand_beside_the_published_ones() -> None:
    of = {table.spec.name: table for grid in ("prge_table3", "prge_fig5") for table in tables(grid)}
    printed = [cell.published for cell in of["prge_table3_speedup"].cells.values() if cell.published is not None]
    assert len(printed) == 16
    assert min(printed) == 1.09
    figure5 = of["prge_fig5_speedup"].cells
    assert figure5["llama2_fp16_inner", "seq64_b1"].published == 1.79
    assert figure5["llama2_nf4_inner", "largest"].published == 1.97
    inference = {table.spec.name: table for table in tables("sensitive_fig1_inference")}
    stated = [
        inference[f"sensitive_fig1_inference_{name}"].cells["sensitive_mm", "128 tokens"].published
        for name in ("speedup", "sparse_speedup")
    ]
    assert stated == [1.49, 2.15]
    loops = {table.spec.name: table for table in tables("llama2_superglue")}["llama2_superglue_speedup"]
    assert loops.spec.over == {"cost_q_inner": "cost_q1"}
    minutes = load("prge/table11").rows
    ratio = minutes["ZO-LoRA-FA (q=1) / Vanilla"]["RTE"] / minutes["ZO-LoRA-FA (q>1) / Inner-loop"]["RTE"]
    assert loops.cells["cost_q_inner", "rte"].published == round(ratio) == 2
    wall_clock = {table.spec.name: table for table in tables("sensitive_fig6")}["sensitive_fig6_speedup"]
    assert wall_clock.cells["sensitive_task", "largest"].published == 2.5


def test_tokens_are_sampled_where_the_paper_samples_them() -> None:
    assert {config.method.kind.top_p for config in configs("sensitive_fig1_inference")} == {0.9}


def test_figures_1_and_9_change_the_kernel_and_nothing_else() -> None:
    for grid, pairs in (
        ("sensitive_fig1", [("random", "random_mm"), ("sensitive", "sensitive_mm")]),
        ("sensitive_fig1_inference", [("random_add", "random_mm"), ("sensitive_add", "sensitive_mm")]),
    ):
        for one, other in pairs:
            for column, config in settings(grid, one).items():
                assert config.space.product == "add"
                apart = settings(grid, other)[column]
                assert replace(config, space=replace(config.space, product="addmm")).identity() == apart.identity()


@pytest.mark.parametrize("grid", ["prge_table1", "prge_table6", "llama2_superglue", "bytebots_table1"])
def test_texts_of_p_rge_have_at_most_512_tokens(grid: str) -> None:
    assert {config.train.max_length for config in configs(grid)} == {512}


def test_a_jetson_s_table_is_pinned_to_the_jetson() -> None:
    assert {trial.needs.device for trial in plan("prge_table3").every.values()} == {"jetson-orin-nano"}


def test_the_columns_of_prge_table4_count_both_copies_of_the_batch() -> None:
    planned, (step_time, speedup) = plan("prge_table4"), tables("prge_table4")
    assert {(trial.needs.device, trial.needs.programs) for trial in planned.every.values()} == {("oneplus-12", True)}
    forms = {
        block: {config.device.form for config in settings("prge_table4", block).values()} for block in ("dual", "seed")
    }
    assert forms == {"dual": {"dual"}, "seed": {"seed"}}
    for column, config in settings("prge_table4", "dual").items():
        assert column == f"seq{config.train.max_length}_e{2 * (config.train.batch or 0)}"
        assert (config.precision.name, config.evaluation.mode.value) == ("fp16", "inner")
        assert config.evaluation.mode.points_per_forward(config.estimator.budget) == 2
    printed = {key[1]: cell.published for key, cell in step_time.cells.items() if cell.published is not None}
    assert printed == load("prge/table4").rows["Dual-Forwarding"]
    assert not any(cell.published for cell in speedup.cells.values()), "the paper prints none"


def test_frameworks_are_compared_on_a_cpu_at_the_same_shapes() -> None:
    devices = {config.device.name: config.device for config in configs("bytebots_frameworks")}
    assert set(devices) == {"cpu", "executorch"}
    assert all(device.cpu for device in devices.values())
    for mode in ("sequential", "prge"):
        one, other = (settings("bytebots_frameworks", f"{name}_{mode}") for name in ("torch", "executorch"))
        for column, config in one.items():
            apart = replace(other[column], device=config.device)
            assert apart.identity() == config.identity()
            assert config.estimator.budget * (config.train.batch or 0) == 16, "as in the report's Table 1"


@pytest.mark.parametrize("letter", "abc")
def test_sensitive_table1_has_the_eps_learning_rates_and_shots_of_table4(letter: str) -> None:
    chosen = load(f"sensitive/table4{letter}").rows
    rows = yaml.safe_load((conf_dir() / "grid" / f"sensitive_table1{letter}.yaml").read_text())["tables"]["accuracy"]
    searched = {block: row for block, row in rows["rows"].items() if row in chosen}
    assert set(searched.values()) == set(chosen)
    for block, row in searched.items():
        columns = settings(f"sensitive_table1{letter}", block)
        for display, task in TASKS.items():
            config = columns[task]
            if row == "ICL":
                assert config.method.kind.demonstrations == chosen[row][display]
            else:
                assert config.update.lr == chosen[row][display]
                assert config.estimator.eps == chosen[row]["epsilon"]


@pytest.mark.parametrize("grid", ["prge_table6", "sensitive_table1c"])
def test_all_linear_layers_of_a_block_are_not_listed_so_that_they_are_all_in_every_family(grid: str) -> None:
    assert {config.space.layers for config in configs(grid) if config.space.layers} == {("all",)}


@pytest.mark.parametrize(("letter", "task"), [("a", "rte"), ("b", "wic"), ("c", "copa")])
def test_sensitive_figure5_has_the_learning_rates_of_table5(letter: str, task: str) -> None:
    blocks = yaml.safe_load((conf_dir() / "grid" / f"sensitive_fig5_{task}.yaml").read_text())["blocks"]
    chosen = load(f"sensitive/table5{letter}").rows
    full = blocks.pop("full")
    row = load("sensitive/table4a").rows["ZO / Full fine-tuning"]
    assert float(full["fixed"]["update"]["lr"]) == row[TASK_NAMES[task]]
    assert {spec["label"] for spec in blocks.values()} == set(chosen)
    for block, spec in blocks.items():
        for fraction, config in settings(f"sensitive_fig5_{task}", block).items():
            assert config.update.lr == chosen[spec["label"]][fraction]
            assert config.space.density == float(fraction)
            assert config.space.renewed_every == (100 if "dynamic" in block else 0)


@pytest.mark.parametrize(("grid", "model"), [("prge_table1", "TinyLlama-1.1B"), ("llama2_superglue", "Llama2-7B")])
def test_prge_tables_search_table8(grid: str, model: str) -> None:
    rows, planned = load("prge/table8").rows, plan(grid)
    for block, row in (
        ("fo_full", "FO-Full"),
        ("fo_lora_fa", "FO-LoRA-FA"),
        ("zo_full", "ZO-Full"),
        ("zo_lora_fa_q1", "ZO-LoRA-FA"),
        ("zo_lora_fa_q", "ZO-LoRA-FA"),
    ):
        printed = rows[f"{model} / {row}"]
        other = printed["lr_exceptions"] or {"tasks": [], "lr": []}
        for task, display in planned.labels.items():
            cells = [cell for cell in planned.cells if (cell.block, cell.task) == (block, task)]
            rates = {cell.hyperparameters["update.lr"] for cell in cells}
            assert rates == set(other["lr"] if display in other["tasks"] else printed["lr"]), (block, task)
            if printed["eps"]:
                found = [planned.every[cell.trial_id].config.to_json() for cell in cells]
                assert {config["estimator"]["eps"] for config in found} == {printed["eps"]}


def test_k_shot_runs_draw_their_rows_with_the_seed_of_the_run() -> None:
    for grid in ("pezo_table3", "pezo_table4", "pezo_table5"):
        for config in configs(grid):
            assert config.split.seed == config.seed
            assert config.split.shots in (16, 256)


GRADIENT_FIGURES = {"fig2", "fig3", *(f"fig7_{m}" for m in ("llama2", "mistral", "opt")), "fig8_mistral", "fig8_opt"}


def test_the_figures_of_squared_gradients_are_measurements_of_backpropagation_with_sgd() -> None:
    planned = plan("sensitive_gradients")
    assert set(planned.grid.figures) == GRADIENT_FIGURES
    for config in configs("sensitive_gradients"):
        assert (config.method.kind.name, config.update.name, config.space.name) == ("fo", "sgd", "full")
        train = config.train
        assert train.batch is not None
        assert train.steps == 10 * train.eval_every, "ten epochs, each looked at"
        rows = 300 if config.task.name == "copa" else 1000
        assert 0 <= train.eval_every * train.batch - rows < train.batch


def test_inference_is_timed_as_appendix_c7_says() -> None:
    for config in configs("sensitive_fig1_inference"):
        kind = config.method.kind
        assert kind.text.startswith("Please describe the effect of sparse zeroth-order optimization")
        assert kind.new_tokens == 128


# exports


class Tags(HTMLParser):
    """Every element is closed in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("br", "hr", "img", "col", "meta"):
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag


@pytest.mark.parametrize("grid", TRIALS)
def test_every_table_of_a_grid_is_whole_html_and_latex_before_anything_was_run(grid: str) -> None:
    for table in tables(grid):
        tags = Tags()
        tags.feed(to_html(table))
        assert not tags.opened
        latex = to_latex(table)
        begun, ended = (re.findall(rf"\\{word}{{(\w+)}}", latex) for word in ("begin", "end"))
        assert sorted(begun) == sorted(ended)
        assert set(begun) == {"table", "tabular"}
        plain = latex.replace(r"\{", "").replace(r"\}", "")
        assert plain.count("{") == plain.count("}")


@pytest.mark.multiprocess
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here (apt: texlive-latex-recommended)")
def test_the_tables_of_all_grids_compile_in_one_latex_document(tmp_path: Path) -> None:
    every = [table for grid in TRIALS for table in tables(grid)]
    (tmp_path / "tables.tex").write_text(document(*map(to_latex, every)), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "tables.pdf").stat().st_size > 10_000
