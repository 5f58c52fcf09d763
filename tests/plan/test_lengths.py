"""What the rows tell of a trial in its plan: too long, fewer than asked for, unlike their template."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPO
from tests.plan.common import changed, configs, planned, problem
from zo_sweeps.plan.availability import Availability, Places
from zo_sweeps.plan.build import Plan
from zo_sweeps.tasks.data import DataStatus

pytestmark = pytest.mark.unit


def remark(plan: Plan) -> str:
    (text,) = {plan.remarks.get(trial.trial_id, "") for trial in plan.trials}
    return text


def test_rows_that_lose_part_of_their_text_are_counted_in_the_plan(tmp_path: Path) -> None:
    assert remark(planned(tmp_path, changed())) == ""
    cut = remark(planned(tmp_path, changed(), "train.max_length=24"))
    assert re.fullmatch(r"\d+ of the 640 rows of demo_remarks exceed 24 tokens and lose part of their text", cut)
    assert "640 of the 640 rows" in remark(planned(tmp_path, changed(), "train.max_length=3"))
    masked = ["model=random_roberta", "prompt=mezo_medium"]
    assert " of the 640 rows " in remark(planned(tmp_path, changed(), *masked, "train.max_length=16"))


def test_a_length_that_leaves_no_room_is_refused_in_the_plan(tmp_path: Path) -> None:
    said = problem(tmp_path, changed(), "train.max_length=1")
    assert "max_length 1 leaves no room for a prompt" in said
    assert "set it to 3 or more" in said
    assert planned(tmp_path, changed(), "train.max_length=3").trials


def test_fewer_training_rows_than_asked_for_are_said_in_the_plan(tmp_path: Path) -> None:
    said = remark(planned(tmp_path, changed(), "split.train=1000000"))
    assert said == "trained on 320 rows, all there are: 999,680 fewer than asked for"
    assert remark(planned(tmp_path, changed(), "split.train=320")) == ""


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ sentence.__class__ }}", "the attribute '__class__' is not accessible"),
        ("{{ sentence['__class__'] }}", "the template does not fit a row"),
        ("{{ sentence + 1 }}", "the template does not fit a row"),
    ],
)
def test_a_template_that_the_sandbox_or_the_rows_refuse_is_refused_in_the_plan(
    template: str, message: str, tmp_path: Path
) -> None:
    task = yaml.safe_load((REPO / "conf" / "task" / "demo_remarks.yaml").read_text())
    task = {**task, "name": "mine", "dialects": {"mezo": {**task["dialects"]["mezo"], "template": template}}}
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "mine.yaml").write_text("# @package task\n" + json.dumps(task))
    grid: dict[str, Any] = changed(axes={"task": ["mine"]})
    assert message in problem(tmp_path, grid)


def test_hub_rows_are_planned_by_their_prepared_length_and_else_at_the_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configs(planned(tmp_path, changed()))[0]

    def looked(row_bytes: float) -> Availability:
        status = DataStatus(True, "the hub", "hf:here", row_bytes=row_bytes)
        monkeypatch.setattr("zo_sweeps.tasks.data.check", lambda spec, task, folder: status)
        return Places().look(config)

    short, unknown = looked(200.0), looked(0.0)
    assert (short.tokens, unknown.tokens) == (50, config.train.max_length)
    assert short.memory_bytes < unknown.memory_bytes
    assert "lengths are not known before the data is loaded" in unknown.remark
    assert "lengths are not known" not in short.remark
