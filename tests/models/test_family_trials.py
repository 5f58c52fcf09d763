"""A model of a family that has no module here, planned and run from its folder alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.test_every_type import tiny
from tests.models.test_families import FAMILIES
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import write_event
from zo_sweeps.core.trial import TrialState
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.models.load import load
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.run.run_trial import run_trial

pytestmark = pytest.mark.unit


class Events(list[Any]):
    def emit(self, event: Any) -> None:
        self.append(json.loads(json.dumps(write_event(event))))


def plan(folder: Path, family: str, *overrides: str, prompt: str = "mezo") -> Plan:
    """Plan two steps of one method on a saved checkpoint of the family."""
    arch = FAMILIES.get(family) or tiny(family)
    model = load(Model(source=ModelSource.RANDOM, arch=arch), torch.float32, "cpu")
    model.module.save_pretrained(folder / "model")
    model.tokenizer.save_pretrained(folder / "model")
    grid = {
        "name": "small",
        "fixed": {
            "task": "demo_remarks",
            "prompt": prompt,
            "split": {"train": 8, "dev": 4, "test": 4},
            "train": {"steps": 2, "effective_batch": 4, "eval_every": 2, "max_length": 40},
        },
        "blocks": {"b": {"fixed": {}}},
    }
    (folder / "grid").mkdir(exist_ok=True)
    (folder / "grid" / "small.yaml").write_text("# @package grid\n" + json.dumps(grid))
    chosen = ["+grid=small", "model=local", f"model.path={folder / 'model'}", *overrides]
    return build(Composer(chosen, [str(folder)]))


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("gpt2", ["method=mezo"]),
        pytest.param("gpt2", ["method=prge"], marks=pytest.mark.long),
        ("opt", ["method=prge"]),
        ("gpt2", ["method=outliers", "space.targets=[c_attn,mlp.c_proj]"]),
        pytest.param("gpt2", ["method=prefix"], marks=pytest.mark.long),
        ("gpt2", ["method=fo_lora_fa", "space.targets=[qkv]"]),
        pytest.param("qwen3", ["method=prge"], marks=pytest.mark.long),
        ("bloom", ["method=prge"]),
        pytest.param("mixtral", ["method=prge"], marks=pytest.mark.long),
        ("qwen2_moe", ["method=mezo", "evaluation.mode=sequential"]),
        ("gptj", ["method=prge", "precision=nf4"]),
        ("modernbert-decoder", ["method=prefix"]),
    ],
)
def test_a_checkpoint_of_any_family_is_planned_and_run(family: str, overrides: list[str], tmp_path: Path) -> None:
    (trial,) = plan(tmp_path, family, *overrides).trials
    events = Events()
    outcome = run_trial(trial, events, [], 1, lambda: False)
    assert outcome.state is TrialState.SUCCEEDED, outcome.error + outcome.traceback
    assert outcome.steps_done == 2
    assert trial.config.model.fingerprint.startswith("local:")


def test_a_target_that_the_model_lacks_is_one_line_at_the_plan(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown target 'gate' in space.targets; choose from: all, .*qkv") as caught:
        plan(tmp_path, "gpt2", "method=prge", "space.targets=[gate]")
    assert "\n" not in str(caught.value)


def test_targets_that_a_model_multiplies_at_once_are_its_matrix_or_the_plan_says_which_it_is(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"gpt2 multiplies q, k, v by one matrix, and 'v' has none of its own"
    ) as caught:
        plan(tmp_path, "gpt2", "method=prge", "space.targets=[v]")
    assert "write qkv, which trains all of them" in str(caught.value)
    separate, fused = (
        plan(tmp_path, "gpt2", "method=prge", f"space.targets=[{t}]").trials for t in ("q,k,v,o", "qkv,o")
    )
    assert [trial.needs for trial in separate] == [trial.needs for trial in fused]
    with pytest.raises(UserError, match=r"is a masked one, .* without a mask; use prompt=mezo_medium"):
        plan(tmp_path, "bert", "method=prge")


def test_a_mode_that_a_model_cannot_run_is_one_line_at_the_plan(tmp_path: Path) -> None:
    masked = ["method=prge", "space.targets=[all]"]
    with pytest.raises(UserError, match=r"cannot hold several points: .*use evaluation.mode=sequential"):
        plan(tmp_path, "deberta-v2", *masked, prompt="mezo_medium")
    with pytest.raises(UserError, match=r"rel_embeddings.weight is read .*use evaluation.restore=in_place"):
        plan(tmp_path, "deberta-v2", "method=mezo", prompt="mezo_medium")


@pytest.mark.parametrize(
    ("family", "prompt", "reason"),
    [
        ("mixtral", "mezo", r"mlp.gate computes with more, or with other, than the rows"),
        ("diffllama", "mezo", r"self_attn.lambda_q1 belongs to a module that holds other layers"),
        ("mpnet", "mezo_medium", r"relative_attention_bias computes with more"),
    ],
)
def test_several_points_of_all_weights_are_refused_at_the_plan(
    family: str, prompt: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"of all its weights: .*{reason}.*use evaluation.mode=sequential") as caught:
        plan(tmp_path, family, "method=mezo", "perturbation=low_rank", "evaluation.mode=both", prompt=prompt)
    assert "\n" not in str(caught.value)


BATCHED = ["method=mezo", "perturbation=low_rank", "evaluation.mode=both"]


@pytest.mark.parametrize(
    ("family", "overrides", "prompt", "corrected"),
    [
        ("gptj", ["method=prge", "precision=nf4"], "mezo", True),
        ("gptj", ["method=prge"], "mezo", False),
        ("gpt2", ["method=prge", "precision=nf4"], "mezo", False),
        ("bert", BATCHED, "mezo_medium", True),
        ("bert", [*BATCHED[:2], "evaluation.mode=sequential"], "mezo_medium", False),
        ("gpt2", BATCHED, "mezo", False),
    ],
)
def test_a_trial_that_was_computed_wrongly_has_another_id(
    family: str, overrides: list[str], prompt: str, corrected: bool, tmp_path: Path
) -> None:
    (trial,) = plan(tmp_path, family, *overrides, prompt=prompt).trials
    model = trial.config.model
    assert model.corrected is corrected
    assert model.to_identity() == ([model.fingerprint, "corrected"] if corrected else model.fingerprint)


def test_several_points_of_all_weights_of_a_masked_model_are_run(tmp_path: Path) -> None:
    (trial,) = plan(tmp_path, "roberta", *BATCHED, prompt="mezo_medium").trials
    outcome = run_trial(trial, Events(), [], 1, lambda: False)
    assert outcome.state is TrialState.SUCCEEDED, outcome.error + outcome.traceback


def test_a_masked_model_of_any_family_is_planned_and_run(tmp_path: Path) -> None:
    found = plan(tmp_path, "bert", "method=mezo_lora", "space.targets=[q,v]", prompt="mezo_medium")
    (trial,) = found.trials
    outcome = run_trial(trial, Events(), [], 1, lambda: False)
    assert outcome.state is TrialState.SUCCEEDED, outcome.error + outcome.traceback
