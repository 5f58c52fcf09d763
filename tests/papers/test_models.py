"""The models of papers and of today: each composes, has the published size, and runs small with random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import yaml

from zo_sweeps.config.composer import Composer, conf_dir
from zo_sweeps.methods.parts import Model
from zo_sweeps.models import families

pytestmark = pytest.mark.unit

FILES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((conf_dir() / "model").glob("*.yaml"))}
SIZED = {name: model for name, model in FILES.items() if model["arch"]}
WIDTHS = (
    *("hidden_size", "intermediate_size", "ffn_dim", "word_embed_proj_dim"),
    *("num_attention_heads", "num_key_value_heads"),
)
SMALL = ("random_llama", "random_roberta")  # no model's shape
PUBLISHED = {  # parameters as the models' own pages count them
    "llama2_7b": 6_738_415_616,
    "tinyllama_1b": 1_100_048_384,
    "opt_1b3": 1_315_758_080,
    "opt_2b7": 2_651_596_800,
    "opt_6b7": 6_658_473_984,
    "mistral_7b": 7_241_732_096,
    "llama3_1b": 1_235_814_400,
    "llama3_3b": 3_212_749_824,
    "roberta_base": 124_697_433,
    "roberta_large": 355_412_057,
}


def _known(name: str) -> dict[str, Any]:
    model = SIZED[name]
    assert model["family"] in (*families.names(), model["arch"]["model_type"])
    return model


@pytest.mark.parametrize("name", FILES)
def test_every_model_composes_under_its_own_name(name: str) -> None:
    model = Composer([f"model={name}"]).trial["model"]
    assert model["name"] == name
    assert model["display"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shape_has_the_published_number_of_parameters(name: str) -> None:
    assert families.describe(_known(name)["arch"]).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", [name for name in SIZED if name.startswith("random_") and name not in SMALL])
def test_random_weights_have_the_shape_of_the_model_that_they_are_named_after(name: str) -> None:
    real = [model for model in SIZED.values() if f"{model['display']} (random weights)" == SIZED[name]["display"]]
    if name != "random_opt_13b":  # no run of a paper trains it
        assert [model["arch"] for model in real] == [SIZED[name]["arch"]]
    else:
        assert families.describe(SIZED[name]["arch"]).parameters == 12_853_473_280


@pytest.mark.parametrize("name", [name for name in SIZED if SIZED[name]["source"] == "hub"])
def test_every_model_runs_with_random_weights_at_reduced_depth_and_width(name: str) -> None:
    from zo_sweeps.models.load import load

    arch = _known(name)["arch"]
    smaller = {"num_hidden_layers": 1, "vocab_size": 4104, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    arch = {**arch, **{key: max(1, arch[key] // 4) for key in WIDTHS if key in arch}, **smaller}
    model = load(Model(source="random", arch=arch), torch.bfloat16, "cpu")
    assert sum(p.numel() for p in model.module.parameters()) == families.describe(arch).parameters
    with torch.inference_mode():
        hidden = model.hidden(torch.arange(5, 13)[None], None)
        logits = model.head(hidden[0])
    assert logits.shape == (8, 4104)
    assert bool(logits.isfinite().all())
    roles = ["qkv"] if arch["model_type"] == "phi3" else ["q", "v"]  # one matrix of Phi's multiplies all three
    assert len(model.target_modules(roles)) == len(roles)
