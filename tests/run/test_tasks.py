"""Tasks and metrics of a user's own, from a folder and a data folder to what is recorded of a trial."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.run.common import make, run
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Event, ScoredDev, ScoredTest, Steps
from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.engine.losses import score
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import build
from zo_sweeps.run import workbench
from zo_sweeps_tracking.rows import points

pytestmark = pytest.mark.unit

REGRESSION = """
name: closeness
display: Closeness
kind: regression
metric: [pearson, spearman]
fields: [one, two]
label_field: score
labels: [0, 2, 5]
dialects:
  mezo: {loss: candidates, template: "{{ one }} and {{ two }} are", options: [" far off", " near by", " much the same"]}
"""
ANSWERS = """
name: answers
display: Answers
kind: generation
metric: [squad_f1, exact_match]
fields: [question]
label_field: answers
max_new_tokens: 12
dialects:
  mezo: {loss: tokens, template: "{{ question }}", options: [" {{ answers[0] }}"]}
"""
OWN_METRIC = '''
from dataclasses import dataclass

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.metric import Metric


@dataclass(frozen=True)
class Misses(Metric):
    """Number of wrong rows, weighted."""

    display = "misses"
    unit, unit_size, digits, better = "", 1.0, 0, "lower"

    weight: float = option(1.0, "of a wrong row", above=0)

    def compute(self, predictions, references):
        return self.weight * sum(p != g for p, g in zip(predictions, references, strict=True))
'''
ROWS: dict[str, list[dict[str, Any]]] = {
    "closeness": [{"one": f"A{i}", "two": f"B{i * i}", "score": i % 6 * 0.9} for i in range(24)],
    "answers": [{"question": f"I saw film {i} and", "answers": ["it was good", f"{i}"]} for i in range(24)],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration folder with two tasks and a metric, and the tasks' rows beside it."""
    for group, name, text in (
        ("task", "closeness.yaml", REGRESSION),
        ("task", "answers.yaml", ANSWERS),
        ("metric", "misses.py", OWN_METRIC),
    ):
        (tmp_path / "conf" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / group / name).write_text(text)
    for task, rows in ROWS.items():
        (tmp_path / "data" / task).mkdir(parents=True)
        for split in ("train", "validation", "test"):
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (tmp_path / "data" / task / f"{split}.jsonl").write_text(lines)
    return tmp_path


def planned(folder: Path, block: str, *overrides: str) -> Trial:
    (folder / "conf" / "grid").mkdir(exist_ok=True)
    head = "# @package grid\nname: mine\nfixed: {model: demo, prompt: mezo}\nseeds: [0]\n"
    (folder / "conf" / "grid" / "mine.yaml").write_text(f"{head}blocks:\n  a: {{fixed: {block}}}\n")
    given = [
        "+grid=mine",
        "grid.relabel=true",
        f"data.dir={folder / 'data'}",
        "split.train=16",
        "split.dev=6",
        "split.test=8",
        *overrides,
    ]
    (trial,) = build(Composer(given, [str(folder / "conf")])).trials
    return trial


def succeeded(trial: Trial) -> tuple[Outcome, list[Event]]:
    outcome, journal = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    return outcome, journal


def with_stop(folder: Path, stop: str) -> None:
    file = folder / "conf" / "task" / "answers.yaml"
    file.write_text(f"{ANSWERS}stop: {json.dumps(stop)}\n")


FEW = "train: {steps: 2, batch: 2, eval_every: 1, max_length: 64}"


def test_a_regression_task_is_one_yaml_and_its_rows(folder: Path) -> None:
    outcome, journal = succeeded(planned(folder, f"{{task: closeness, method: prge, {FEW}}}"))
    for split in ("dev", "test"):
        assert outcome.metrics[f"{split}/metric"] == outcome.metrics[f"{split}/pearson"]
        for name in ("pearson", "spearman"):
            assert -1 <= outcome.metrics[f"{split}/{name}"] <= 1
    assert "test/accuracy" not in outcome.metrics
    (test,) = (event for event in journal if isinstance(event, ScoredTest))
    assert test.metrics == {name: outcome.metrics[f"test/{name}"] for name in ("pearson", "spearman")}
    # Its options are of several tokens: a forward that shares their prompt is another trial, with the same losses.
    trial = planned(folder, f"{{task: closeness, method: prge, {FEW}}}", "prompt.shared=true")
    assert trial.trial_id != outcome.trial_id
    other, shared = succeeded(trial)
    told = [[event for event in events if isinstance(event, Steps)] for events in (journal, shared)]
    losses = [[x for event in events for x in event.losses] for events in told]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert other.metrics["test/loss"] == pytest.approx(outcome.metrics["test/loss"], rel=1e-4)
    tokens, fewer = (sum(event.tokens for event in events) for events in told)
    assert fewer < 0.75 * tokens, "three options"


def test_a_metric_in_a_folder_of_the_user_s_is_one_python_file(folder: Path) -> None:
    block = "{task: demo_remarks, method: zero_shot, train: {max_length: 64}}"
    metrics = "task.metric=[accuracy,{name:misses,weight:2.0}]"
    outcome, _ = succeeded(planned(folder, block, metrics))
    assert outcome.metrics["test/misses"] == pytest.approx(2 * 8 * (1 - outcome.metrics["test/accuracy"]))
    assert outcome.metrics["test/metric"] == outcome.metrics["test/accuracy"]
    with pytest.raises(UserError, match=r"unknown key 'task.metric.wieght'.*did you mean 'task.metric.weight'"):
        planned(folder, block, "task.metric={name:misses,wieght:2.0}")


def test_f1_of_a_classification_task_is_recorded_as_f1_and_not_accuracy() -> None:
    trial = make("model=demo", "method=zero_shot", "task.metric=[f1,accuracy]", "split.test=40")
    outcome, journal = succeeded(trial)
    assert workbench.warm is not None
    model = workbench.warm.model
    data = workbench.examples(TrialConfig.of(trial.config), model)
    scored = score(model, data.test, model.pad_id, data.spec.objective, torch.device("cpu"))
    pairs = [(choice, example.gold) for choice, example in zip(scored.choices, data.test, strict=True)]
    tp, wrong = pairs.count((1, 1)), pairs.count((0, 1)) + pairs.count((1, 0))
    assert outcome.metrics["test/f1"] == pytest.approx(2 * tp / (2 * tp + wrong))
    assert outcome.metrics["test/metric"] == outcome.metrics["test/f1"]
    assert outcome.metrics["test/accuracy"] == 1 - wrong / 40 != outcome.metrics["test/f1"]
    sent = {point.key: point.value for point in points(trial, journal)}
    assert sent["test/f1"] == outcome.metrics["test/f1"]
    assert sent["test/accuracy"] == outcome.metrics["test/accuracy"]
    assert sent["selected/dev_f1"] == outcome.metrics["dev/f1"]
    assert "test/metric" not in sent


@pytest.mark.parametrize("stop", [".", "e", " t"])
def test_generated_answers_end_at_the_task_s_stop(stop: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    evaluate = workbench.evaluate

    def spy(spec: Any, examples: Any, answers: Any) -> dict[str, float]:
        seen.append(list(answers.texts))
        return evaluate(spec, examples, answers)

    monkeypatch.setattr(workbench, "evaluate", spy)
    block = "{task: answers, method: zero_shot, train: {max_length: 64}}"
    with_stop(folder, stop)
    trial = planned(folder, block)
    outcome, _ = succeeded(trial)
    assert {"test/squad_f1", "test/exact_match"} <= set(outcome.metrics)
    assert workbench.warm is not None
    model = workbench.warm.model
    prompts = [list(example.prompt_ids) for example in workbench.examples(TrialConfig.of(trial.config), model).test]
    whole = model.generate(prompts, 12, [model.eos_id])
    assert seen[-1] == [text.split(stop)[0].strip() for text in whole]
    if stop == "e":
        assert seen[-1] != whole, "the demo model writes this letter"


def test_a_stop_that_is_a_newline_ends_an_answer_inside_a_token_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        workbench.CausalModel, "generate", lambda self, rows, *_, **__: ["It was good\n\nI"] * len(rows)
    )
    with_stop(folder, "\n")
    outcome, _ = succeeded(planned(folder, "{task: answers, method: zero_shot, train: {max_length: 64}}"))
    assert outcome.metrics["test/exact_match"] == 1, "Llama 3, Qwen and Gemma have a token of two newlines"


def test_nothing_is_left_of_an_answer_that_begins_with_its_stop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = workbench.CausalModel.generate

    def forced(self: Any, prompts: Any, new: int, *stops: Any, **options: Any) -> list[str]:
        said = self.tokenizer.encode("\n\n It was good", add_special_tokens=False)
        assert said[0] == said[1], "a tokenizer with one token for both would end there"
        options["choose"] = lambda rows, token, logits: torch.eye(logits.shape[1])[[said[token]] * len(rows)]
        return generate(self, prompts, len(said), *stops, **options)

    monkeypatch.setattr(workbench.CausalModel, "generate", forced)
    with_stop(folder, "\n\n")
    outcome, _ = succeeded(planned(folder, "{task: answers, method: zero_shot, train: {max_length: 64}}"))
    assert outcome.metrics["test/exact_match"] == 0


def test_answers_of_a_task_without_a_stop_end_at_a_newline(folder: Path) -> None:
    block = "{task: answers, method: zero_shot, train: {max_length: 64}}"
    plain = succeeded(planned(folder, block))[0]
    with_stop(folder, "\n")
    newline = succeeded(planned(folder, block))[0]
    assert plain.trial_id != newline.trial_id
    assert plain.metrics["test/squad_f1"] == newline.metrics["test/squad_f1"]


def test_a_metric_that_is_better_when_lower_selects_its_lowest_step(folder: Path) -> None:
    block = "{task: demo_remarks, method: fo_lora_fa, update: {lr: 0.05}, train: {steps: 4, batch: 2, eval_every: 1}}"
    trial = planned(folder, block, "task.metric=perplexity", "train.select=metric", "train.max_length=64")
    outcome, journal = succeeded(trial)
    dev = {event.step: event.metric for event in journal if isinstance(event, ScoredDev)}
    assert len(set(dev.values())) > 1
    assert outcome.selected_step == min(dev, key=lambda step: dev[step])
    assert all(map(math.isfinite, dev.values()))


def test_an_objective_of_one_s_own_choice_trains_and_is_another_trial(folder: Path) -> None:
    block = f"{{task: demo_remarks, method: fo_lora_fa, {FEW}}}"
    own, tokens = planned(folder, block), planned(folder, block, "train.objective=tokens")
    assert own.trial_id != tokens.trial_id
    first = [next(e.losses[0] for e in succeeded(t)[1] if isinstance(e, Steps)) for t in (own, tokens)]
    assert first[0] != first[1]


def test_a_population_s_keys_and_values_are_in_the_memory_that_a_trial_is_planned_with(folder: Path) -> None:
    def planned_bytes(mode: str, new: int) -> int:
        few = "{steps: 1, batch: 2, max_length: 450, objective: f1}"
        block = f"{{task: answers, method: prge, estimator: {{q: 4}}, update: {{lr: 1e-3}}, train: {few}}}"
        return planned(folder, block, f"evaluation.mode={mode}", f"task.max_new_tokens={new}").needs.memory_bytes

    of_a_token = 2 * 4 * 256 * 6  # keys and values of the demo model
    for mode, rows in (("both", 8 * 2), ("sequential", 8)):  # of a step's 2 prompts at all points, and of 8 test rows
        grown = planned_bytes(mode, 400) - planned_bytes(mode, 300)
        assert grown == pytest.approx(rows * of_a_token * 100, rel=0.15)


@pytest.mark.parametrize("method", ["prge", pytest.param("eggroll", marks=pytest.mark.long)])
def test_a_population_s_answers_in_one_generation_take_the_steps_of_one_member_after_the_other(
    method: str, folder: Path
) -> None:
    with_stop(folder, ".")
    rows = [{"question": text, "answers": ["it was a good movie", "the best"]} for text in ("I saw it and", "The film")]
    (folder / "data" / "answers" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 12))
    eps = {"eggroll": 0.03, "prge": 0.5}[method]
    few = "{steps: 1, batch: 2, max_length: 64, objective: f1}, split: {dev: 2, test: 2}"
    block = f"{{task: answers, method: {method}, estimator: {{q: 4, eps: {eps}}}, update: {{lr: 1e-3}}, train: {few}}}"
    both, alone = (
        [event for event in succeeded(planned(folder, block, mode))[1] if isinstance(event, Steps)]
        for mode in ("evaluation.mode=both", "evaluation.mode=sequential")
    )
    assert [event.losses for event in both] == [event.losses for event in alone]
    coefs, others = ([c for event in one for c in event.coefs] for one in (both, alone))
    assert coefs == others
    assert len({*coefs[0]}) > 1, "the members have other texts"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (("metric:", "metrik:"), "metric"),
        (("label_field:", "label_feild:"), "label_field"),
        (("template:", "templat:"), "dialects.mezo.template"),
    ],
)
def test_a_misspelt_key_of_a_task_file_is_refused_with_file_key_and_near_match(
    wrong: tuple[str, str], right: str, folder: Path
) -> None:
    file = folder / "conf" / "task" / "closeness.yaml"
    file.write_text(file.read_text().replace(*wrong))
    with pytest.raises(UserError) as caught:
        planned(folder, "{task: closeness, method: zero_shot}")
    text = str(caught.value)
    misspelt = wrong[1].rstrip(":")
    assert f"unknown key 'task.{right.replace(wrong[0].rstrip(':'), misspelt)}'" in text
    assert str(file) in text
    assert f"did you mean 'task.{right}'?" in text


def test_a_key_that_a_task_file_lacks_is_named_with_the_file(folder: Path) -> None:
    file = folder / "conf" / "task" / "closeness.yaml"
    file.write_text(file.read_text().replace("label_field:", "# label_field:"))
    with pytest.raises(UserError, match=r"task\.label_field is missing in ") as caught:
        planned(folder, "{task: closeness, method: zero_shot}")
    assert str(file) in str(caught.value)
