"""Loading of weights that are stored as codes: every weight is encoded as it is read.

transformers reads the shards, renames and converts tensors for every family; a quantizer of ours takes a projection's
weight in place of its `set_parameter`. Beside the codes, one tensor is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from zo_sweeps.methods.precision import WeightOnlyPrecision
from zo_sweeps.models.projection import features

NAME = "zo_sweeps"
MISSHAPEN = "misshapen_weights"  # attribute of a loaded model: [(name, stored shape, wanted shape)]


@register_quantization_config(NAME)
class Quantization(QuantizationConfigMixin):
    """What is stored how, in the form in which transformers passes it to the quantizer.

    Args:
        names: qualified names of the projections that are stored as codes.
        packaged: whether the checkpoint has no weights for them: see `restore`.
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
            layer.register_parameter("weight", None)  # nothing is read or drawn for it
            replace(model, name, layer)

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        return param_name in self.weights

    def get_quantize_ops(self) -> ConversionOps:
        return _Encode(self.precision)

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False


class _Encode(ConversionOps):
    """Put a module with codes in place of the projection whose weight has been read."""

    def __init__(self, precision: WeightOnlyPrecision) -> None:
        self.precision = precision

    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, list[Tensor]]:
        name, model, missing_keys = kwargs["full_layer_name"], kwargs["model"], kwargs["missing_keys"]
        for value in input_dict.values():
            weight = value[0] if isinstance(value, list) else value
            layer = model.get_submodule(name.removesuffix(".weight"))
            if weight.shape != layer.weight.shape:
                getattr(model, MISSHAPEN).append((name, weight.shape, layer.weight.shape))
            else:
                replace(model, name.removesuffix(".weight"), self.precision.stored(layer, weight))
            if missing_keys is not None:
                missing_keys.discard(name)
        return {}  # nothing for the loader to set


def misshapen(model: Any) -> list[tuple[str, Any, Any]]:
    """Return (name, shape in the file, shape of the architecture) of the weights of a loaded model that do not fit."""
    found: list[tuple[str, Any, Any]] = getattr(model, MISSHAPEN)
    return found


def encode(precision: WeightOnlyPrecision, names: Collection[str], model: Any, name: str) -> None:
    """Store the weight of a module as codes if its name is among `names`; see `zo_sweeps.models.random.draw`."""
    if name in names:
        layer = model.get_submodule(name)
        replace(model, name, precision.stored(layer, layer.weight.detach()))


def restore(precision: WeightOnlyPrecision, model: Any, codes: Iterable[tuple[str, Mapping[str, Tensor]]]) -> None:
    """Put modules with stored codes in place of the projections of a model that was loaded as `packaged`.

    Raises ValueError for codes of another precision.
    """
    for name, buffers in codes:
        layer = model.get_submodule(name)
        replace(model, name, precision.restored(layer, features(layer), buffers))


def replace(model: nn.Module, name: str, child: nn.Module) -> None:
    """Put a module that holds its values in place of another one."""
    parent = model.get_submodule(name.rpartition(".")[0])
    setattr(parent, name.rpartition(".")[2], child)
    # transformers would initialize the modules whose weights it did not set itself, and some reach into their children.
    modules: list[Any] = [parent, *child.modules()]
    for module in modules:
        module._is_hf_initialized = True
