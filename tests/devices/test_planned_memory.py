"""The plan's memory against the tensors alive at the peak of a trial, by the meter that counts the same everywhere."""

from __future__ import annotations

import itertools

import pytest

from tests.run.common import TINY, make, run
from zo_sweeps.core.memory_parts import SCORING, TOTAL
from zo_sweeps.core.trial import Outcome, Trial
from zo_sweeps.methods.trial_config import TrialConfig

SIZES = ["train.batch=8", "train.steps=1", "split.train=32", "split.dev=4", "split.test=4", "train.max_length=64"]
FILLED, SHARED = "task=timing", "task=demo_remarks"  # texts of max_length; texts of many lengths, which share rows
RATE = "update.lr=1e-4"
ALL = ["train.logits=all", "train.packing=false"]
CODED = ["precision=nf4", "precision.compute=fp32"]
BOTH = ["method=mezo", "update=conservative", RATE, "estimator.q=1", "evaluation.mode=both"]
CASES = {
    "MeZO": ["method=mezo", RATE, SHARED],
    "MeZO in bf16": ["method=mezo", RATE, "precision=bf16", FILLED],
    "a stored noise": ["method=pezo_pool", RATE, SHARED],
    "one point at a time": ["method=prge", RATE, "evaluation.mode=sequential", FILLED],
    "P-RGE, q = 16": ["method=prge", RATE, "estimator.q=16", SHARED],
    "EGGROLL": ["method=eggroll", RATE, SHARED],
    "points on one side": ["method=mezo_gv", RATE, "space=lora_fa", "estimator.q=4", "evaluation.mode=outer", FILLED],
    "points along the estimate": [*BOTH, "space=lora_fa", FILLED],
    "of all weights, one at a time": [*BOTH, "perturbation=low_rank", FILLED],
    "all logits": ["method=prge", RATE, "estimator.q=4", *ALL, SHARED],
    "over NF4": ["method=prge", RATE, "estimator.q=4", "precision=nf4", FILLED],
    "codes": ["method=quzo", "update.lr=1", "precision=int8", SHARED],
    "VeRA": ["method=vera", RATE, FILLED],
    "prefix": ["method=prefix", RATE, FILLED],
    "backpropagation, full": ["method=fo_full", RATE, SHARED],
    "backpropagation, LoRA-FA": ["method=fo_lora_fa", RATE, FILLED],
    "backpropagation, all logits": ["method=fo_lora_fa", RATE, *ALL, FILLED],
    "a layer at a time": ["method=fo_lora_fa_layerwise", RATE, FILLED],
    "a layer at a time, LoRA": ["method=fo_lora_fa_layerwise", RATE, "space=lora", SHARED],
    "a layer at a time, all logits": ["method=fo_lora_fa_layerwise", RATE, *ALL, FILLED],
    "a layer at a time, over NF4": ["method=fo_lora_fa_layerwise", RATE, *CODED, FILLED],
}
OF_LLAMA = [*TINY, "model.arch.max_position_embeddings=512"]
OF_ROBERTA = ["model=random_roberta", "model.arch.hidden_size=64", "prompt=mezo_medium"]
WIDE = ["model.arch.vocab_size=32768", "model.arch.intermediate_size=256", "model.arch.num_key_value_heads=1"]
FAMILIES = {
    "GPT-2": [*OF_LLAMA, "model.arch.model_type=gpt2"],
    "OPT": [*OF_LLAMA, "model.arch.model_type=opt", "+model.arch.ffn_dim=256", "+model.arch.word_embed_proj_dim=64"],
    "Phi-3": [*OF_LLAMA, "model.arch.model_type=phi3", "model.arch.intermediate_size=160"],
    "Gemma": [*OF_LLAMA, "model.arch.model_type=gemma", "+model.arch.head_dim=32", *WIDE],
    "GPT-NeoX": [*OF_LLAMA, "model.arch.model_type=gpt_neox", "model.arch.intermediate_size=256"],
    "RoBERTa": OF_ROBERTA,
    "BERT": [*OF_ROBERTA, "model.arch.model_type=bert"],
}
FUSED = ("GPT-2", "Phi-3", "GPT-NeoX")
METHODS = {
    "zero-shot": ["method=zero_shot"],
    "MeZO": ["method=mezo", RATE],
    "P-RGE, q = 4": ["method=prge", RATE, "estimator.q=4"],
    "P-RGE, q = 16": ["method=prge", RATE, "estimator.q=16"],
    "EGGROLL": ["method=eggroll", RATE],
    "LOZO": ["method=lozo", RATE],
    "low rank": ["method=mezo", RATE, "perturbation=low_rank", "estimator.q=4", "evaluation.mode=both"],
    "backpropagation, full": ["method=fo_full", RATE],
    "backpropagation, LoRA-FA": ["method=fo_lora_fa", RATE],
    "a layer at a time": ["method=fo_lora_fa_layerwise", RATE],
}
ALWAYS = [  # what was outside of the bounds before, or is nearest to one
    ("GPT-2", "zero-shot", FILLED),
    ("GPT-2", "P-RGE, q = 4", FILLED),
    ("GPT-2", "EGGROLL", FILLED),
    ("OPT", "P-RGE, q = 16", SHARED),
    ("OPT", "backpropagation, LoRA-FA", FILLED),
    ("OPT", "a layer at a time", FILLED),
    ("Phi-3", "EGGROLL", FILLED),
    ("Gemma", "EGGROLL", SHARED),
    ("Gemma", "backpropagation, full", SHARED),
    ("RoBERTa", "P-RGE, q = 4", SHARED),
    ("RoBERTa", "backpropagation, LoRA-FA", SHARED),
    ("RoBERTa", "a layer at a time", SHARED),
]
EVERY = [
    pytest.param(*one, id=", ".join(one), marks=() if one in ALWAYS else pytest.mark.long)
    for one in itertools.product(FAMILIES, METHODS, (FILLED, SHARED))
    if one[0] not in ("RoBERTa", "BERT") or one[2] == SHARED  # `timing` has no prompt with a mask
]


def check(overrides: list[str]) -> None:
    trial = make(*overrides, *SIZES)
    outcome, _ = run(trial)
    within(trial, outcome)


def within(trial: Trial, outcome: Outcome) -> None:
    """Compare the plan with the step's tensors, or the scoring's if those are more."""
    planned, parts = sum(trial.needs.parts.values()), trial.needs.parts
    kind, space = (config := TrialConfig.of(trial.config)).method.kind, config.space
    scored, stepped = outcome.metrics[SCORING], outcome.metrics[TOTAL]
    if scored > stepped and space.moves_base:
        planned -= parts[
            "trainable"
        ]  # gradients, moments, the best so far: nothing of them is there when it is measured
    elif kind.backpropagates and space.moves_base:
        planned -= parts["weights"]  # the best so far: a copy, which no step reads
    assert 1.0 <= planned / max(scored, stepped) <= 1.5, (parts, outcome.metrics)


# What each of them holds beside the weights, another one holds as well.
ALIKE = (
    *("MeZO", "one point at a time", "VeRA", "backpropagation, LoRA-FA"),
    *("a layer at a time", "a layer at a time, LoRA", "a layer at a time, all logits"),
)


@pytest.mark.unit
@pytest.mark.parametrize(
    "overrides",
    [pytest.param(CASES[name], id=name, marks=pytest.mark.long if name in ALIKE else ()) for name in CASES],
)
def test_planned_bytes_are_one_to_one_and_a_half_of_the_tensors_that_are_alive(overrides: list[str]) -> None:
    check(overrides)


@pytest.mark.multiprocess
def test_sampled_answers_are_planned_within_the_same_bounds() -> None:
    """All of their tokens have logits, whose number no task of the other cases has."""
    check(["method=policy_gradient", RATE, "method.group=4", "task=demo_sums"])


@pytest.mark.unit
@pytest.mark.parametrize(("family", "method", "task"), EVERY)
def test_other_families_are_planned_within_the_same_bounds(family: str, method: str, task: str) -> None:
    """Feed-forward parts without a gate, fused projections, an activation of several operations, a table of its own."""
    overrides = [*FAMILIES[family], *METHODS[method], task]
    if {"method=prge", "method=fo_lora_fa", "method=fo_lora_fa_layerwise"} & {*overrides}:
        overrides.append(f"space.targets=[{'qkv' if family in FUSED else 'q,v'}]")
    check(overrides)
