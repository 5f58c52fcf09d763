"""What the rows tell of a trial in its plan: too long, fewer than asked for, unlike their template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPO
from tests.plan.common import TINY, changed, configs, planned, problem
from tests.run.common import run
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import Batch
from zo_sweeps.methods.task import Lengths
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan import availability
from zo_sweeps.plan.availability import Availability, Places
from zo_sweeps.plan.build import Plan
from zo_sweeps.run.workbench import Workbench
from zo_sweeps.tasks.data import DataStatus

pytestmark = pytest.mark.unit
FEW_SCORED = ("split.dev=1", "split.test=1")  # else the most tokens that are scored at a time decide on the memory


def remark(plan: Plan) -> str:
    (text,) = {"; ".join(plan.remarks.get(trial.trial_id, ())) for trial in plan.trials}
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


def test_hub_rows_are_planned_by_their_prepared_length_or_the_tasks_usual_one_and_else_at_the_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configs(planned(tmp_path, changed(), *FEW_SCORED))[0]
    usual = replace(config, task=replace(config.task, lengths=Lengths(mean=30, longest=90)))

    def looked(row_bytes: float, config: TrialConfig, available: bool = True) -> Availability:
        status = DataStatus(available, "the hub", "hf:here", row_bytes=row_bytes)
        monkeypatch.setattr(availability, "check", lambda spec, task, folder: status)
        return Places().look(config)

    prepared, unknown, typical, away = (
        looked(200.0, config), looked(0.0, config), looked(0.0, usual), looked(0.0, usual, available=False),
    )  # fmt: skip
    most = 512  # positions of the demo model, below train.max_length
    assert (prepared.tokens, typical.tokens, away.tokens, unknown.tokens) == (50, 30, 30, most)
    assert typical.needs.memory_bytes < prepared.needs.memory_bytes < unknown.needs.memory_bytes
    assert looked(200.0, usual).needs.memory_bytes == prepared.needs.memory_bytes, "longest is 100, and not 90"
    short = replace(usual, train=replace(usual.train, max_length=20))
    assert looked(0.0, short).tokens == 20
    counted = "rows that exceed train.max_length are counted in the run, not in the plan"
    assert prepared.remarks == (counted,)
    assert typical.remarks == (counted, "lengths are not known here: planned as is typical of the task") == away.remarks
    assert unknown.remarks == (counted, "lengths are not known here: planned at train.max_length")


def test_shown_examples_and_templates_count_in_a_length(tmp_path: Path) -> None:
    """The texts of `timing` are its rows 64 times over; in-context learning puts examples before each."""
    full = planned(tmp_path, changed(axes={"task": ["timing"]}), "train.max_length=256")
    assert {Places().look(config).tokens for config in configs(full)} == {256}
    icl = changed(blocks={"icl": {"label": "ICL", "fixed": {"method": "icl"}}}, tables={})
    one, four = (
        Places().look(configs(planned(tmp_path, icl, f"method.demonstrations={n}", *FEW_SCORED))[0]) for n in (1, 4)
    )
    assert four.tokens == pytest.approx(2.5 * one.tokens)
    assert four.needs.memory_bytes > one.needs.memory_bytes


@pytest.mark.parametrize("kind", ["every candidate", "gold only", "masked"])
def test_the_tokens_of_a_row_are_those_that_steps_and_scoring_forward_in_the_run(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options of several tokens: a row's candidates are as many texts, of which a token loss forwards the right one."""
    task = yaml.safe_load((REPO / "conf" / "task" / "demo_remarks.yaml").read_text())
    del task["source"]
    task |= {"name": "mine", "local": "mine"}
    task["dialects"]["mezo"]["options"] = [" terrible", " great", " a great one to see in the evening"]
    texts = ["What a film", "It is a long and slow film about a river", "No", "They sing well", "Who wrote it and why"]
    for folder in ("task", "data/mine"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "task" / "mine.yaml").write_text("# @package task\n" + json.dumps(task))
    labels = 2 if kind == "masked" else 3
    lines = [json.dumps({"sentence": text, "label": i % labels}) for i, text in enumerate(texts)]
    for split in ("train", "validation", "test"):
        (tmp_path / "data" / "mine" / f"{split}.jsonl").write_text("\n".join(lines))
    ways = {
        "every candidate": ["train.objective=candidates"],
        "gold only": ["train.objective=tokens"],
        "masked": ["prompt=mezo_medium", "model=random_roberta"],
    }
    sizes = ["train.batch=5", "train.steps=1", "split.train=5", "split.dev=5", "split.test=5", "train.eval_every=1"]
    zo = {**TINY["blocks"]["zo"], "axes": {}}
    fixed = [f"data.dir={tmp_path / 'data'}", "device=cpu", *ways[kind], *sizes]
    (trial,) = planned(tmp_path, changed(axes={"task": ["mine"]}, blocks={"zo": zo}), *fixed).trials
    needs = Places().look(TrialConfig.of(trial.config))

    forwarded: dict[str, int] = {}

    def counting(part: str, collated: Callable[..., Batch]) -> Callable[..., Batch]:
        def counted(*args: Any, **options: Any) -> Batch:
            batch = collated(*args, **options)
            packed = batch.positions is not None
            texts = int(batch.attention_mask[batch.positions == 0].sum()) if packed else len(batch.input_ids)
            forwarded[part] = int(batch.attention_mask.sum()) + texts  # a text's last token is counted, not forwarded
            return batch

        return counted

    monkeypatch.setattr(Workbench, "batch", counting("step", Workbench.batch))
    monkeypatch.setattr(losses, "collate", counting("scoring", losses.collate))
    outcome, _ = run(trial)
    assert outcome.state.value == "SUCCEEDED", outcome.error
    assert 5 * needs.step_tokens == pytest.approx(forwarded["step"])
    assert 5 * needs.tokens == pytest.approx(forwarded["scoring"])
    assert (needs.step_tokens < needs.tokens) == (kind == "gold only")
    assert trial.cost == pytest.approx(4 * forwarded["step"] + 2 * forwarded["scoring"])  # 4 points; dev and test
