"""The pages on adding a part, done: their files are written as they stand, and a trial uses each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.worker.common import run
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.plan.build import build

pytestmark = pytest.mark.unit

PAGES = REPO / "docs" / "adding"


def written(page: str, folder: Path) -> list[str]:
    """Write the page's files, each named by its first line; return their paths below the folder."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:python|yaml)\n# FOLDER/(\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for name, code in blocks:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(code, encoding="utf-8")
    return [name for name, _ in blocks]


def outcome_of(folder: Path, block: str, *overrides: str) -> Outcome:
    rows = re.search(r"^```json\n(.*?)^```", (PAGES / "task.md").read_text(encoding="utf-8"), re.M | re.S)
    assert rows
    lines = [json.loads(line) for line in rows[1].splitlines()] * 8
    (folder / "data" / "closeness").mkdir(parents=True)
    for split in ("train", "validation", "test"):
        text = "".join(json.dumps(row) + "\n" for row in lines)
        (folder / "data" / "closeness" / f"{split}.jsonl").write_text(text, encoding="utf-8")
    (folder / "grid").mkdir()
    head = "# @package grid\nname: mine\nfixed: {model: demo, prompt: mezo, task: demo_remarks}\nseeds: [0]\n"
    (folder / "grid" / "mine.yaml").write_text(f"{head}blocks:\n  a: {{fixed: {block}}}\n")
    small = ["split.train=16", "split.dev=8", "split.test=8", "train.max_length=64", f"data.dir={folder / 'data'}"]
    (trial,) = build(Composer(["+grid=mine", *small, *overrides], [str(folder)])).trials
    outcome, _ = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    return outcome


FEW = "train: {steps: 2, batch: 2, eval_every: 2}"


def test_a_metric_is_one_file(tmp_path: Path) -> None:
    assert written("metric", tmp_path) == ["metric/misses.py"]
    metrics = outcome_of(tmp_path, "{method: zero_shot}", "task.metric=[accuracy,{name:misses,weight:2.0}]").metrics
    assert metrics["test/misses"] == pytest.approx(16 * (1 - metrics["test/accuracy"]))


def test_an_objective_is_one_file(tmp_path: Path) -> None:
    assert written("objective", tmp_path) == ["objective/hinge.py"]
    assert outcome_of(tmp_path, f"{{method: prge, {FEW}}}", "train.objective=hinge").steps_done == 2


def test_a_task_is_one_yaml_and_its_rows(tmp_path: Path) -> None:
    assert written("task", tmp_path) == ["task/closeness.yaml"]
    metrics = outcome_of(tmp_path, f"{{method: prge, task: closeness, {FEW}}}").metrics
    assert {"test/pearson", "test/spearman", "dev/pearson"} <= set(metrics)
    assert abs(metrics["test/pearson"]) == pytest.approx(1), "two rows, eight times: a line goes through both"


def test_a_task_kind_is_one_file(tmp_path: Path) -> None:
    assert written("task_kind", tmp_path) == ["task_kind/ordinal.py"]
    written("task", tmp_path)
    metrics = outcome_of(tmp_path, "{method: zero_shot, task: closeness}", "task.kind=ordinal").metrics
    assert -1 <= metrics["test/spearman"] <= 1
