"""Projections with 8-bit activations in a form that XNNPACK runs as one quantized linear each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zo_sweeps.engine.codes.scaled import Groupwise
from zo_sweeps.engine.layers.weight_only import WeightOnly


class QuantizedLinear(nn.Module):
    """The projection of a `WeightOnly` with `Groupwise` codes, as torchao's operations: y = Q8(x) W^T + b.

    Exported, it is the pattern choose_qparams -> quantize -> dequantize -> linear over a dequantized constant, which
    XNNPACK's partitioner takes as one linear with 4-bit weights and 8-bit activations. Codes and scales are the
    layer's own; a scale is given in fp32 and stored by XNNPACK in bfloat16, the format that it was rounded to.

    Args:
        layer: stays as it is. Beside its packed codes, this module holds them in one byte each.
    """

    def __init__(self, layer: WeightOnly) -> None:
        from torchao.quantization import IntxUnpackedToInt8Tensor

        super().__init__()
        assert isinstance(layer.codes, Groupwise)
        assert layer.entries is None, "an exported layer has no entries beside its codes"
        codes, scales = layer.codes.unpack(0, layer.out_features).flatten(1), layer.codes.decoded_scales()
        self.filled = codes.shape[1] - layer.in_features
        quantized = IntxUnpackedToInt8Tensor(
            codes,
            scales,
            torch.zeros_like(scales, dtype=torch.int8),
            torch.int4,  # type: ignore[attr-defined]  # torch has it, its stubs do not
            (1, layer.codes.group),
            torch.float32,
            "int8_asym_per_token",
        )
        # Not `weight`: a product with anything but activations, which would be rounded too, must fail (DoRA's norm).
        self.quantized = nn.Parameter(quantized, requires_grad=False)
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.pad(x, (0, self.filled)) if self.filled else x, self.quantized, self.bias)


@contextmanager
def quantized_linears(module: nn.Module) -> Iterator[None]:
    """Hold a `QuantizedLinear` in place of every `WeightOnly` with `Groupwise` codes; put the layers back at the end.

    Memory: one byte per code, until then.
    """
    layers = {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, WeightOnly) and isinstance(layer.codes, Groupwise)
    }
    try:
        for name, layer in layers.items():
            module.set_submodule(name, QuantizedLinear(layer))
        yield
    finally:
        for name, layer in layers.items():
            module.set_submodule(name, layer)
