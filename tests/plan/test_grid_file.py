"""Parts of a grid's file that match nothing, or cannot be read, are refused: no row runs without what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.plan.common import changed, planned, problem

pytestmark = pytest.mark.unit
COLUMNS: dict[str, Any] = {"axes": {}, "columns": {"few": {"train": {"batch": 2}}, "many": {"train": {"batch": 8}}}}
STEPS = {"train": {"steps": 8}}
ROW = "in grid tiny, block zo"
FILE = "grid/tiny.yaml; it must be a mapping"


def grid(of_block: dict[str, Any], **top: Any) -> dict[str, Any]:
    """TINY with parts of its block replaced, and some of its own."""
    made = changed(**top)
    made["blocks"]["zo"] |= of_block
    return made


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (grid({"per_task": {"demo_remark": STEPS}}), f"unknown column 'demo_remark' {ROW}, per_task"),
        (grid({"per_task": {"demo_remark": STEPS}}), "did you mean 'demo_remarks'?"),
        (grid({"per_task": {"demo_remarks": STEPS}}, **COLUMNS), "unknown column 'demo_remarks'"),
        (grid({"per_task": {"demo_remarks": STEPS}}, **COLUMNS), "choose from: few, many"),
        (grid({"per_task": {"demo_remarks": {"task": "sst2"}}}), f"no task is read from per_task {ROW}"),
        (grid({"per_task": {"demo_remarks": {"seed": 1}}}), f"no seed is read from per_task {ROW}"),
        (grid({"axes": {"seed": [0, 1]}}), f"no seed is read from axes {ROW}; write seeds: [...]"),
        (grid({"fixed": {"method": "mezo", "seed": 7}}), f"no seed is read from fixed {ROW}"),
        (grid({}, fixed={"seed": 7}), "no seed is read from fixed in grid tiny;"),
        (grid({}, axes={"seed": [0, 1]}), "no seed is read from axes in grid tiny;"),
        (grid({}, axes={}, columns={"a": {"seed": 1}}), "no seed is read from columns in grid tiny;"),
        (grid({}, exclude=[{"seed": 1}]), "no seed is read from exclude in grid tiny;"),
        (grid({}, exclude=[{"update": {"lrr": 0.1}}]), "unknown key 'update.lrr' in grid tiny, exclude"),
        (grid({}, exclude=[{"update": {"lrr": 0.1}}]), "did you mean 'update.lr'?"),
        (grid({}, exclude=[{"update.lr": 0.2}]), "unknown update.lr 0.2 in grid tiny, exclude; choose from: 0.01, 0.1"),
        (grid({}, exclude=[{"method": "prg", "update.lr": 0.1}]), "did you mean 'prge'?"),
        (grid({"exclude": [{"method": "prg"}]}), f"unknown method 'prg' {ROW}, exclude"),
        (grid({"exclude": [{"task": "demo_remark"}]}), "did you mean 'demo_remarks'?"),
        (grid({"per_task": {"demo_remarks": None}}), "grid.blocks.zo.per_task.demo_remarks has the wrong type in"),
        (grid({"per_task": {"demo_remarks": None}}), FILE),
        (grid({"per_task": {"demo_remarks": 3}}), FILE),
        (grid({"per_task": {"demo_remarks": [3]}}), FILE),
        (grid({}, columns={"base": None}), FILE),
        (grid({}, columns={"base": 3}), FILE),
        (
            grid({}, axes={"task": [["demo_remarks"]]}),
            "['demo_remarks'] in axes names no task in grid tiny; write task: [",
        ),
        (grid({}, axes={}, columns={"a": {"task": ["sst2"]}}), "['sst2'] in columns names no task"),
        (grid({"fixed": {"update": [1]}}), f"[1] in fixed names no update {ROW}; write update: NAME"),
        (grid({"axes": {"method": [{"name": "mezo"}]}}), "{'name': 'mezo'} in axes names no method"),
        (grid({"axes": {"train": [{"steps": 3}]}}), f"train in axes is a whole part {ROW}; write train: {{OPTION"),
        (grid({"per_task": {"demo_remarks": {"update": [["sgd"]]}}}), "['sgd'] in per_task names no update"),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_what_matches_nothing_or_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, made: dict[str, Any], said: str
) -> None:
    text = problem(tmp_path, made)
    assert said in text
    assert "\n" not in text


RESTRICTED = grid(
    {"per_task": {"demo_remarks": STEPS, "timing": STEPS}, "exclude": [{"task": "timing", "update.lr": 0.1}]},
    axes={"task": ["demo_remarks", "timing"]},
    exclude=[{"method": "mezo", "estimator.eps": 0.1}],
)
RESTRICTED["blocks"]["other"] = {"fixed": {"method": "mezo"}, "axes": {"estimator": {"eps": [0.1, 0.2]}}}


@pytest.mark.parametrize(
    "override",
    [
        "task=demo_remarks",
        "task=trec",
        "grid.axes.task=[timing]",
        "~grid.blocks.other",
        "grid.only=[zo]",
        "update.lr=0.3",
        "grid.blocks.zo.axes.update.lr=[0.3]",
        "+grid.entrants.fo_full={}",
    ],
)
def test_what_the_command_line_leaves_out_or_changes_may_still_be_named(tmp_path: Path, override: str) -> None:
    assert planned(tmp_path, RESTRICTED, override).every


def test_a_column_that_is_left_out_and_a_task_that_only_the_command_line_names_may_be_named(tmp_path: Path) -> None:
    columns = grid({"per_task": {"few": STEPS, "many": STEPS}}, **COLUMNS)
    assert {cell.task for cell in planned(tmp_path, columns, "~grid.columns.few").cells} == {"many"}
    by_default = grid({"per_task": {"demo_remarks": STEPS}}, axes={})
    assert {trial.steps for trial in planned(tmp_path, by_default).trials} == {8}, "the default task"
    assert {trial.steps for trial in planned(tmp_path, by_default, "task=timing").trials} == {4}
    prepared = grid({"per_task": {"timing": STEPS}})
    assert {trial.steps for trial in planned(tmp_path, prepared, "task=timing").trials} == {8}


def test_a_learning_rate_that_rates_make_can_be_excluded(tmp_path: Path) -> None:
    made = grid(
        {"axes": {}, "fixed": {"method": "prge", "update": {"lr": 0.1}}}, rates=[1, 3], exclude=[{"update.lr": 0.3}]
    )
    assert [cell.hyperparameters["update.lr"] for cell in planned(tmp_path, made).cells] == [0.1]
