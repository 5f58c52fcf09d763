"""Trials of prompt=chat, from a folder with a model of its own template to what is recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from tests.run.common import run
from tests.run.test_tasks import ANSWERS, REGRESSION, ROWS
from tests.tasks.chats import CHATML, tokenizer_of
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.run import workbench
from zo_sweeps.tasks.encode import EncodedExample
from zo_sweeps.tasks.templates import Chat

pytestmark = pytest.mark.unit

COPA = [
    {
        "premise": f"It was {i}.",
        "choice1": "It was great.",
        "choice2": "It was so.",
        "question": "cause",
        "label": i % 2,
    }
    for i in range(24)
]
TASKS = ("demo_remarks", "copa", "answers", "closeness")
LLAMA = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
GRID = """# @package grid
name: mine
fixed: {model: local, prompt: chat, task: demo_remarks}
seeds: [0]
blocks:
  zo: {fixed: {method: prge, train: {steps: 2, batch: 2, eval_every: 1, max_length: 200}}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template, two tasks of one's own, and rows."""
    folder = tmp_path_factory.mktemp("chat")
    tokenizer = tokenizer_of("chatml")
    size = {"vocab_size": len(tokenizer), "max_position_embeddings": 256}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **LLAMA, **size)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    for group, name, text in (("task", "closeness", REGRESSION), ("task", "answers", ANSWERS), ("grid", "mine", GRID)):
        (folder / "conf" / group).mkdir(parents=True, exist_ok=True)
        (folder / "conf" / group / f"{name}.yaml").write_text(text)
    for task, rows in {**ROWS, "copa": COPA}.items():
        (folder / "data" / task).mkdir(parents=True)
        for split in ("train", "validation", "test"):
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / "data" / task / f"{split}.jsonl").write_text(lines)
    return folder


def planned(folder: Path, *overrides: str) -> Plan:
    sizes = ["split.train=16", "split.dev=6", "split.test=8", "grid.relabel=true"]
    given = ["+grid=mine", f"data.dir={folder / 'data'}", f"model.path={folder / 'model'}", *sizes, *overrides]
    return build(Composer(given, [str(folder / "conf")]))


def outcome_of(folder: Path, *overrides: str) -> Outcome:
    (trial,) = planned(folder, *overrides).trials
    outcome, _ = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    return outcome


def encoded() -> list[EncodedExample]:
    """The examples of the trials that ran."""
    return [one for splits in workbench._encoded.values() for one in (*splits.train, *splits.dev, *splits.test)]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_of_every_kind_runs_in_a_chat(task: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench, "_encoded", {})
    asked: list[set[int]] = []
    generate = CausalModel.generate

    def noticing(
        model: CausalModel, prompts: Sequence[Any], new: int, stops: Sequence[int], **others: Any
    ) -> list[str]:
        asked.append(set(stops))
        return generate(model, prompts, new, stops, **others)

    monkeypatch.setattr(CausalModel, "generate", noticing)
    outcome = outcome_of(folder, f"task={task}")
    tokenizer = tokenizer_of("chatml")
    ends = {tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "</s>")}
    assert asked == [ends] * len(asked)
    assert bool(asked) == (task == "answers")
    assert outcome.metrics["rows_truncated"] == 0
    for example in (examples := encoded()):
        text = tokenizer.decode(example.prompt_ids)
        assert text.startswith("<|im_start|>system\nYou are a helpful film.<|im_end|>\n<|im_start|>user\n")
        assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert len(examples) == 16 + 6 + 8


def test_demonstrations_are_turns_of_the_chat(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench, "_encoded", {})
    given = ["method=icl", "method.demonstrations=2", "prompt.system=Be brief."]
    outcome_of(folder, "task=closeness", "train.max_length=256", *given)
    (splits,) = workbench._encoded.values()
    decode = tokenizer_of("chatml").decode
    assert [decode(example.prompt_ids).count("<|im_start|>") for example in splits.test] == [7] * 8
    assert all("system\nBe brief.<|im_end|>" in decode(example.prompt_ids) for example in splits.test)


def test_the_template_the_system_text_and_the_prompt_count_towards_a_trial_s_id(folder: Path) -> None:
    file = folder / "model" / "chat_template.jinja"
    assert file.read_text() == CHATML

    def trial_id(*overrides: str) -> str:
        (trial,) = planned(folder, *overrides).trials
        assert isinstance(trial.config, TrialConfig)
        return trial.config.trial_id()

    ids = [trial_id(), trial_id("prompt=mezo"), trial_id("prompt.system=Be brief.")]
    file.write_text(CHATML.replace("helpful", "careful"))
    try:
        ids.append(trial_id())
    finally:
        file.write_text(CHATML)
    assert len(set(ids)) == 4
    assert trial_id() == ids[0]


def test_a_plan_counts_the_frame(folder: Path) -> None:
    remarks = planned(folder, "train.max_length=64").remarks.values()
    assert any("of the 640 rows of demo_remarks exceed 64 tokens" in line for lines in remarks for line in lines)
    chat = Chat(tokenizer_of("chatml"), "")
    with pytest.raises(UserError, match=f"leaves no room for a prompt.*set it to {chat.tokens + 2} or more"):
        planned(folder, f"train.max_length={chat.tokens + 1}")
