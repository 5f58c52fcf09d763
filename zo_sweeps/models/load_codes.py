"""Loading of weights that are stored as codes: every weight is encoded as it is read.

transformers reads the shards, renames and converts tensors for every family; a quantizer of ours takes a projection's
weight in place of its `set_parameter`. Beside the codes, one tensor is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from zo_sweeps.methods.precision import WeightOnlyPrecision
from zo_sweeps.models.projection import features

NAME = "zo_sweeps"
MISSHAPEN = "misshapen_weights"  # attribute of a loaded model: [(name, stored shape, wanted shape)]


@register_quantization_config(NAME)
class Quantization(QuantizationConfigMixin):
    """How the projections of these names are stored, in the form in which transformers passes it to the quantizer.

    A `packaged` checkpoint has no weights for them: see `restore`.
    """

    def __init__(self, precision: WeightOnlyPrecision, names: Collection[str], packaged: bool = False) -> None:
        super().__init__(NAME)  # type: ignore[arg-type]  # names that are registered are taken, too
        self.precision, self.names, self.packaged = precision, names, packaged

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": NAME, "precision": self.precision.to_json()}


@register_quantizer(NAME)
class Quantizer(HfQuantizer):
    """Replaces every projection of the blocks by a module with its weight's codes, as soon as the weight is read."""

    def __init__(self, quantization_config: Quantization, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.precision = quantization_config.precision
        self.names, self.packaged = quantization_config.names, quantization_config.packaged
        self.weights = {f"{name}.weight" for name in quantization_config.names}

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        setattr(model, MISSHAPEN, [])
        for name in self.names if self.packaged else ():
            layer = model.get_submodule(name)
            del layer.weight  # nothing is read or drawn for it
            _put_placeholder(layer)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> None:
        for name in self.names:
            vars(model.get_submodule(name)).pop("weight", None)

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        return param_name in self.weights

    def get_quantize_ops(self) -> ConversionOps:
        return _Encode(self.precision, self.weights)

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False


class _Encode(ConversionOps):
    """Put modules with codes in place of the projections whose weights have been read.

    A checkpoint may store the weights of several projections as one tensor, which transformers has split by now.
    """

    def __init__(self, precision: WeightOnlyPrecision, weights: Collection[str]) -> None:
        self.precision, self.weights = precision, weights

    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, list[Tensor]]:
        model, missing_keys = kwargs["model"], kwargs["missing_keys"]
        for name in [name for name in input_dict if name in self.weights]:
            value = input_dict.pop(name)
            weight = value[0] if isinstance(value, list) else value
            path = name.removesuffix(".weight")
            layer = model.get_submodule(path)
            if weight.shape != layer.weight.shape:
                getattr(model, MISSHAPEN).append((name, weight.shape, layer.weight.shape))
            else:
                coded = self.precision.stored(layer, weight)
                _put_placeholder(coded)
                model.set_submodule(path, coded)
            if missing_keys is not None:
                missing_keys.discard(name)
        return input_dict  # the rest is for the loader to set


def _put_placeholder(layer: Any) -> None:
    """Give a module a weight without values that counts as loaded, until all weights are.

    transformers then initializes what no checkpoint has: buffers of rotary positions and causal masks in the modules
    around the projections, some of which reach for the projections' weights as well.
    """
    layer.weight = torch.empty(features(layer), device="meta")
    layer.weight._is_hf_initialized = True


def encode(precision: WeightOnlyPrecision, names: Collection[str], model: Any, name: str) -> None:
    """Store the weights of those children of a module whose names are among `names` as codes.

    A module is drawn after its children, whose weights it may draw again; see `zo_sweeps.models.load.draw`.
    """
    for child, layer in [*model.get_submodule(name).named_children()]:
        if (path := f"{name}.{child}") in names:
            model.set_submodule(path, precision.stored(layer, layer.weight.detach()))


def restore(precision: WeightOnlyPrecision, model: Any, codes: Iterable[tuple[str, Mapping[str, Tensor]]]) -> None:
    """Put modules with stored codes in place of the projections of a model that was loaded as `packaged`.

    Raises ValueError for codes of another precision.
    """
    for name, buffers in codes:
        layer = model.get_submodule(name)
        model.set_submodule(name, precision.restored(layer, features(layer), buffers))


def forget(model: Any) -> None:
    """Make transformers save a model as one that was never quantized."""
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def plain(weight: nn.Parameter, bias: nn.Parameter | None, transposed: bool) -> nn.Module:
    """Return a projection with a weight [out, in], or a Conv1D with one [in, out] where it is `transposed`."""
    first, second = weight.shape
    with torch.device("meta"):
        layer: nn.Module = Conv1D(second, first) if transposed else nn.Linear(second, first)
    layer.register_parameter("weight", weight)
    layer.register_parameter("bias", bias)
    return layer
