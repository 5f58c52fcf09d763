"""The plan's memory against the tensors alive at the peak of a trial, by the meter that counts the same everywhere."""

from __future__ import annotations

import pytest

from tests.worker.common import make, run
from zo_sweeps.core.memory import SCORING, TOTAL
from zo_sweeps.methods.trial_config import TrialConfig

SIZES = ["train.batch=8", "train.steps=1", "split.train=32", "split.dev=4", "split.test=4", "train.max_length=64"]
FILLED, SHARED = "task=timing", "task=demo_remarks"  # texts of max_length; texts of many lengths, which share rows
RATE = "update.lr=1e-4"
ALL = ["train.logits=all", "train.packing=false"]
CASES = {
    "MeZO": ["method=mezo", RATE, SHARED],
    "MeZO in bf16": ["method=mezo", RATE, "precision=bf16", FILLED],
    "a stored noise": ["method=pezo_pool", RATE, SHARED],
    "one point at a time": ["method=prge", RATE, "evaluation.mode=sequential", FILLED],
    "P-RGE, q = 16": ["method=prge", RATE, "estimator.q=16", SHARED],
    "EGGROLL": ["method=eggroll", RATE, SHARED],
    "all logits": ["method=prge", RATE, "estimator.q=4", *ALL, SHARED],
    "over NF4": ["method=prge", RATE, "estimator.q=4", "precision=nf4", FILLED],
    "codes": ["method=quzo", "update.lr=1", "precision=int8", SHARED],
    "VeRA": ["method=vera", RATE, FILLED],
    "prefix": ["method=prefix", RATE, FILLED],
    "backpropagation, full": ["method=fo_full", RATE, SHARED],
    "backpropagation, LoRA-FA": ["method=fo_lora_fa", RATE, FILLED],
    "backpropagation, all logits": ["method=fo_lora_fa", RATE, *ALL, FILLED],
    "zero-shot": ["method=zero_shot", SHARED],
}


@pytest.mark.unit
@pytest.mark.parametrize("overrides", CASES.values(), ids=CASES)
def test_planned_bytes_are_one_to_one_and_a_half_of_the_tensors_that_are_alive(overrides: list[str]) -> None:
    trial = make(*overrides, *SIZES)
    outcome, _ = run(trial)
    measured = max(outcome.metrics[TOTAL], outcome.metrics[SCORING])
    planned = sum(trial.needs.parts.values())
    config = TrialConfig.of(trial.config)
    if config.method.kind.backpropagates and config.space.moves_base:
        planned -= trial.needs.parts["weights"]  # the best so far: a copy, which no step reads
    assert 1.0 <= planned / measured <= 1.5, (trial.needs.parts, outcome.metrics)
