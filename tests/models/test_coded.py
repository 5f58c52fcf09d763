"""Models stored as codes: every family, from shards and from random numbers, a tensor at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.common import local, random_model
from tests.models.test_families import FAMILIES, MASKED
from tests.models.test_families import model_of as whole_model_of
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine import linear
from zo_sweeps.engine.layers.weight_only import WeightOnly
from zo_sweeps.engine.precisions.int8 import INT8
from zo_sweeps.engine.precisions.nf4 import NF4
from zo_sweeps.methods.arch import ALL
from zo_sweeps.methods.parts import Model
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.load import load
from zo_sweeps.models.projection import features

pytestmark = pytest.mark.unit
PRECISION = NF4(compute="fp32")
IDS = torch.arange(5, 25).view(2, 10)


def decoded(model: CausalModel, precision: Any = PRECISION) -> CausalModel:
    """The model with the weights that its codes would stand for."""
    for layer in model.target_modules([ALL]).values():
        weight = precision.encode(linear.dense(layer).contiguous()).dense()
        layer.weight.data.copy_(weight.t() if linear.is_transposed(layer) else weight)
    return model


def same(one: CausalModel, other: CausalModel) -> bool:
    with torch.inference_mode():
        return torch.equal(one.head(one.hidden(IDS)), other.head(other.hidden(IDS)))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_from_shards_is_that_of_the_decoded_weights(name: str, tmp_path: Path) -> None:
    plain = whole_model_of(name)
    module: Any = plain.module
    module.save_pretrained(tmp_path, max_shard_size="20KB")
    plain.tokenizer.save_pretrained(tmp_path)
    model = load(local(tmp_path), torch.float32, "cpu", PRECISION)
    layers = model.target_modules([ALL])
    assert all(isinstance(layer, WeightOnly) for layer in layers.values())
    assert {key: features(layer) for key, layer in layers.items()} == {
        key: features(layer) for key, layer in plain.target_modules([ALL]).items()
    }
    expected = decoded(load(local(tmp_path), torch.float32, "cpu"))
    assert same(model, expected)
    assert model.weight_bytes == PRECISION.weight_bytes(model.arch)
    if name not in MASKED:
        assert model.generate([[5, 6, 7]], 4) == expected.generate([[5, 6, 7]], 4)


@pytest.mark.parametrize("family", ["llama", "opt", "mistral"])
@pytest.mark.parametrize("precision", [PRECISION, INT8(compute="bf16")])
def test_random_weights_are_those_of_a_model_without_codes(family: str, precision: Any) -> None:
    model = load(random_model(family), precision.dtype, "cpu", precision)
    assert same(model, decoded(load(random_model(family), precision.dtype, "cpu"), precision))


def edited(checkpoint: Any, change: Any) -> Model:
    folder = checkpoint()
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return local(folder)


def test_a_projection_of_the_wrong_shape_is_named_with_both_shapes(checkpoint: Any) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    model = edited(checkpoint, lambda weights: weights.update({name: torch.ones(7, 32)}))
    with pytest.raises(UserError, match=r"up_proj\.weight has shape \[7, 32\] in the .* \[48, 32\] by config"):
        load(model, torch.float32, "cpu", PRECISION)


def test_a_projection_that_is_missing_is_named(checkpoint: Any) -> None:
    model = edited(checkpoint, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(UserError, match=r"lack 1 tensors .* \(model\.layers\.1\.mlp\.up_proj\.weight\)"):
        load(model, torch.float32, "cpu", PRECISION)
