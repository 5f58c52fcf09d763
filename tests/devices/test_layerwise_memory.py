"""Backpropagation a layer at a time against a zeroth-order step: tensors alive at the peak, same rows and length."""

from __future__ import annotations

import pytest

from tests.run.common import make, run
from zo_sweeps.core.memory_parts import TOTAL
from zo_sweeps.core.trial import TrialState

SIZES = ["train.batch=16", "train.steps=1", "train.eval_every=1", "split.train=32", "split.dev=2", "split.test=2"]
RATE = "update.lr=1e-4"
BACKWARD, PLAIN, MEZO = ["method=fo_lora_fa_layerwise"], ["method=fo_lora_fa"], ["method=mezo"]
IN_LORA_FA = ["method=prge", "estimator.q=1", "evaluation.mode=sequential"]  # MeZO in the same space
CODED = ["precision=nf4", "precision.compute=fp32"]
FILLED, SHARED = ["task=timing", "train.max_length=64"], ["task=demo_remarks"]
DEMO = ["model=demo"]
SMOLLM2 = [  # 135M; the inputs of 30 layers are within the tenth up to some 850 tokens
    *("model=random_llama", "model.arch.hidden_size=576", "model.arch.intermediate_size=1536"),
    *("model.arch.num_hidden_layers=30", "model.arch.num_attention_heads=9", "model.arch.num_key_value_heads=3"),
    *("model.arch.vocab_size=49152", "train.max_length=48", "split.dev=1", "split.test=1"),
]
LLAMA2_7B = [  # two of its layers
    *("model=random_llama2_7b", "model.arch.num_hidden_layers=2", "precision=fp32"),
    *("train.batch=8", "train.max_length=32", "split.dev=1", "split.test=1"),
]


def peak(*overrides: str) -> float:
    """The bytes of all tensors alive at the peak of a step."""
    outcome, _ = run(make(*SIZES, RATE, *overrides))
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback
    return outcome.metrics[TOTAL]


@pytest.mark.unit
@pytest.mark.parametrize("rows", [FILLED, pytest.param(SHARED, marks=pytest.mark.long)], ids=["filled", "shared"])
def test_the_demo_is_backpropagated_in_a_tenth_more_than_the_memory_of_mezo(rows: list[str]) -> None:
    ours, plain = (peak(*DEMO, *rows, *method) for method in (BACKWARD, PLAIN))
    assert ours <= 1.1 * peak(*DEMO, *rows, *MEZO) < plain / 1.5
    assert ours <= 1.1 * peak(*DEMO, *rows, *IN_LORA_FA)


@pytest.mark.long
def test_codes_are_decoded_a_matrix_at_a_time_in_the_backward_pass_too() -> None:
    ours, mezo = (peak(*DEMO, *FILLED, *CODED, *method) for method in (BACKWARD, IN_LORA_FA))
    assert ours <= 1.1 * mezo


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", [SMOLLM2, LLAMA2_7B], ids=["SmolLM2", "Llama-2-7B, two layers"])
def test_larger_shapes_are_backpropagated_in_a_tenth_more_than_the_memory_of_mezo(model: list[str]) -> None:
    ours, mezo = (peak(*FILLED, *model, *method) for method in (BACKWARD, MEZO))
    assert ours <= 1.1 * mezo
