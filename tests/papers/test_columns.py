"""Grids whose columns are not tasks; rows a class; the step that is selected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.plan.common import changed, planned
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ScoredDev
from zo_sweeps.methods.trial_config import TrialConfig

pytestmark = pytest.mark.unit

COLUMNS = {
    "short": {"train": {"max_length": 64}, "update": {"lr": 0.5}},
    "k=4": {"split": {"shots": 4, "seed": None}, "estimator": {"q": [1, 2]}},
    "other": {"task": "timing", "space": "lora", "space.rank": 3},
}


def grid(**top: Any) -> dict[str, Any]:
    found = changed(columns=COLUMNS, **top)
    found["axes"] = top.get("axes", {})
    return found


def test_columns_have_their_names_and_replace_what_the_block_says(tmp_path: Path) -> None:
    plan = planned(tmp_path, grid(seeds=[7]))
    configs: dict[str, Any] = {cell.task: TrialConfig.of(plan.every[cell.trial_id].config) for cell in plan.cells}
    assert plan.labels == {name: name for name in COLUMNS}
    assert [cell.task for cell in plan.cells] == ["short"] + ["k=4"] * 4 + ["other"] * 2
    assert (configs["short"].train.max_length, configs["short"].update.lr) == (64, 0.5)
    assert (configs["k=4"].split.shots, configs["k=4"].split.seed) == (4, 7)
    assert configs["other"].task.name == "timing"
    assert (configs["other"].space.name, configs["other"].space.rank) == ("lora", 3)
    assert configs["short"].space.name == "lora_fa"


def test_a_block_can_say_otherwise_for_a_column_and_the_command_line_for_all(tmp_path: Path) -> None:
    made = grid()
    made["blocks"]["zo"]["per_task"] = {"short": {"update": {"lr": 0.25}}}
    plan = planned(tmp_path, made, "train.max_length=32", "grid.relabel=true")
    configs = {cell.task: TrialConfig.of(plan.every[cell.trial_id].config) for cell in plan.cells}
    assert configs["short"].update.lr == 0.25
    assert {config.train.max_length for config in configs.values()} == {32}


def test_one_task_of_the_command_line_is_every_column_s_and_the_table_says_so(tmp_path: Path) -> None:
    plan = planned(tmp_path, grid(), "task=timing")
    assert {TrialConfig.of(plan.every[cell.trial_id].config).task.name for cell in plan.cells} == {"timing"}
    assert any("task=timing" in caveat for caveat in plan.caveats)


@pytest.mark.parametrize(("top", "overrides"), [({}, ["task=sst2,rte"]), ({"axes": {"task": ["sst2"]}}, [])])
def test_several_tasks_are_refused_where_the_columns_are_not_tasks(
    tmp_path: Path, top: dict[str, Any], overrides: list[str]
) -> None:
    with pytest.raises(UserError, match="the columns of this grid are not tasks"):
        planned(tmp_path, grid(**top), *overrides)


def test_sizes_that_shots_replace_do_not_make_another_trial(tmp_path: Path) -> None:
    def ids(**split: int) -> set[str]:
        made = changed(columns={"k": {"split": {"shots": 4, **split}}})
        made["axes"] = {}
        return set(planned(tmp_path, made).every)

    assert ids(train=10, dev=20) == ids(train=30, dev=40)
    assert ids(test=10) != ids(test=20)


def test_smoke_lowers_the_shots_of_a_grid_that_has_them_and_no_other(tmp_path: Path) -> None:
    plan = planned(tmp_path, grid(), "scale=smoke", "split.test=9")
    split = {cell.task: TrialConfig.of(plan.every[cell.trial_id].config).split for cell in plan.cells}
    assert split["k=4"].shots == 4
    assert (split["short"].shots, split["short"].train, split["short"].test) == (None, 32, 9)


def test_smoke_takes_layers_off_random_weights_alone(tmp_path: Path) -> None:
    def layers(model: str) -> set[int]:
        plan = planned(tmp_path, changed(), f"model={model}", "scale=smoke")
        return {TrialConfig.of(t.config).model.arch.get("num_hidden_layers", 0) for t in plan.every.values()}

    assert (layers("random_llama"), layers("llama2_7b"), layers("demo")) == ({1}, {32}, {0})


class _Sink:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, event: Any) -> None:
        self.events.append(event)


@pytest.mark.parametrize(("select", "best"), [("loss", min), ("metric", max)])
def test_the_step_with_the_best_dev_loss_or_metric_is_tested(tmp_path: Path, select: str, best: Any) -> None:
    from zo_sweeps.run.run_trial import run_trial

    made = changed()
    made["blocks"]["zo"]["axes"] = {"update": {"lr": [0.5]}}
    overrides = ("train.steps=6", "train.eval_every=1", "split.train=32", "split.dev=40", "split.test=8")
    plan = planned(tmp_path, made, *overrides, f"train.select={select}", "model=random_llama")
    sink = _Sink()
    outcome = run_trial(plan.trials[0], sink, [], 1, lambda: False)
    seen = {e.step: getattr(e, select) for e in sink.events if isinstance(e, ScoredDev)}
    assert len(set(seen.values())) > 1, "a test that can fail"
    assert outcome.selected_step == min(step for step, value in seen.items() if value == best(seen.values()))


def test_an_unknown_way_to_select_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown select 'acc' in the command line; choose from: loss, metric"):
        planned(tmp_path, changed(), "train.select=acc")


def test_a_measure_can_be_what_is_left_of_another(tmp_path: Path) -> None:
    from tests.tables.examples import measure, record, spec
    from zo_sweeps.tables import build
    from zo_sweeps.tables.cells import CellState

    beyond = measure("memory_beyond_weights")
    metrics = {"dev/loss": 0.5, "peak_memory_bytes": 5 * 2**30, "weights_bytes": 2**30}
    table = build(spec(measure=beyond), [record(metrics=metrics)])
    assert table.cells["zo", "sst2"].mean == 4.0
    del metrics["weights_bytes"]
    assert build(spec(measure=beyond), [record(metrics=metrics)]).cells["zo", "sst2"].state is CellState.UNMEASURED
