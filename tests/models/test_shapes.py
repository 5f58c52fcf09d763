"""Sizes from a configuration, against published counts and against the modules that transformers builds."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.models.common import TINY, model_yaml
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.spaces.lora import LoRA
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.methods.precision import Precision
from zo_sweeps.models.families import describe

PUBLISHED = {  # parameters as the models' own pages count them
    "llama2_7b": 6_738_415_616,
    "tinyllama_1b": 1_100_048_384,
    "opt_1b3": 1_315_758_080,
    "llama3_1b": 1_235_814_400,
    "llama3_3b": 3_212_749_824,
    "mistral_7b": 7_241_732_096,
    "smollm2_135m": 134_515_008,
    "smollm2_360m": 361_821_120,
    "smollm2_1b7": 1_711_376_384,
    "qwen3_0b6": 596_049_920,
    "qwen3_1b7": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "gemma3_270m": 268_098_176,
    "gemma3_1b": 999_885_952,
    "phi4_mini": 3_836_021_760,
}
VARIANTS = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    ("mistral", {"head_dim": 4}),
    ("opt", {}),
    ("opt", {"enable_bias": False}),
    ("opt", {"word_embed_proj_dim": 16, "do_layer_norm_before": False}),
    ("opt", {"layer_norm_elementwise_affine": False}),
]


def build(arch):
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**arch))


SIZES = ("qwen3_1b7", "qwen3_4b", "qwen3_8b")  # of one shape: the smallest is always counted


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.long) if one in SIZES else one for one in PUBLISHED]
)
def test_the_count_is_the_published_one(name):
    assert describe(model_yaml(name)["arch"]).parameters == PUBLISHED[name]


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_the_count_is_that_of_the_module_that_transformers_builds(family, changes):
    arch = {**TINY[family], **changes}
    assert describe(arch).parameters == sum(p.numel() for p in build(arch).parameters())


def test_low_rank_factors_are_counted_over_all_layers():
    # q: 32 -> 32, v: 32 -> 16 (2 of 4 heads), 2 layers, rank 3
    arch = describe(TINY["llama"])
    count = [space(targets=("q", "v_proj"), rank=3).trainable(arch) for space in (LoRA, LoRAFA)]
    assert count == [2 * 3 * (32 + 32) + 2 * 3 * (32 + 16), 2 * 3 * (32 + 16)]


@pytest.mark.parametrize("value", [None, 0, "32", True])
def test_a_missing_or_senseless_size_names_its_key(value):
    with pytest.raises(UserError, match="positive integer 'hidden_size'"):
        describe({**TINY["llama"], "hidden_size": value})


def test_bytes_follow_the_precision():
    arch = describe(TINY["llama"])
    sizes = [Precision.read(name).weight_bytes(arch) for name in ("fp32", "bf16", "fp16")]
    assert sizes == [4 * arch.parameters, 2 * arch.parameters, 2 * arch.parameters]
    with pytest.raises(UserError, match="unknown precision 'fp8'"):
        Precision.read("fp8")


@pytest.mark.multiprocess
def test_sizes_and_status_need_neither_torch_nor_transformers():
    code = (
        "import sys; from zo_sweeps.engine.spaces.lora import LoRA; from zo_sweeps.methods.parts import Model;"
        "from zo_sweeps.models import identity; LoRA().trainable(identity.status(Model(source='demo')).arch);"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
