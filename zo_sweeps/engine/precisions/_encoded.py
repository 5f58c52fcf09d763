"""Bases of the precisions whose weights are decoded by the engine. Not members of the axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from zo_sweeps.engine.later import Tensor, four_bit, linear, nn, weight_only
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.precision import WeightOnlyPrecision

SCALES_PER_SCALE = 256  # of 4-bit codes with double quantization, as in bitsandbytes


@dataclass(frozen=True)
class Encoded(WeightOnlyPrecision):
    """A precision given by its codes: `encode`, and the bytes they take."""

    def scale_bytes(self, out: int, into: int) -> int:
        return 4 * self.scales(out, into)

    def encode(self, weight: Tensor) -> weight_only.WeightCodes:
        """Return a contiguous weight [out, in] as codes, on its device."""
        raise NotImplementedError

    def encode_weighted(self, weight: Tensor, sensitivity: Tensor) -> weight_only.WeightCodes:
        """Return a contiguous weight [out, in] as codes that are made by the sensitivity of its entries, [out, in]."""
        raise NotImplementedError

    def stored(self, layer: nn.Module, weight: Tensor, sensitivity: Tensor | None = None) -> nn.Module:
        transposed = linear.is_transposed(layer)
        weight = (weight.t() if transposed else weight).contiguous()
        if sensitivity is None:
            return self._module(layer, self.encode(weight))
        sensitivity = (sensitivity.t() if transposed else sensitivity).contiguous()
        return self._module(layer, self.encode_weighted(weight, sensitivity))

    def restored(self, layer: nn.Module, shape: tuple[int, int], buffers: Mapping[str, Tensor]) -> nn.Module:
        coded = dict(buffers)
        index, values = coded.pop(weight_only.ENTRIES, None), coded.pop(weight_only.ENTRY_VALUES, None)
        scheme = self.encode(next(iter(coded.values())).new_zeros(1, shape[1], dtype=self.dtype))
        module = self._module(layer, scheme.holding(shape, coded))
        if index is not None and values is not None:
            module.entries = weight_only.Entries(index, values, shape)
        return module

    @staticmethod
    def _module(layer: nn.Module, codes: weight_only.WeightCodes) -> weight_only.WeightOnly:
        bias: Any = layer.bias  # a tensor or None: `layer` is a Linear or a Conv1D
        return weight_only.WeightOnly(codes, bias, linear.is_transposed(layer))


@dataclass(frozen=True)
class BlockPrecision(Encoded):
    """Codes of 4 bits, and a scale of 4 bytes per block of a weight; the last block is filled up with zeros."""

    block: Literal[32, 64, 128, 256, 512, 1024] = option(64, "consecutive values of a row-major weight with one scale")

    def scales(self, out: int, into: int) -> int:
        return -(-out * into // self.block)

    def code_bytes(self, out: int, into: int) -> int:
        return self.scales(out, into) * self.block // 2 + self.scale_bytes(out, into)


@dataclass(frozen=True)
class FourBitPrecision(BlockPrecision):
    """w = table[c] * s_block, c of 4 bits, s_block the largest |w| of a block: the codes of bitsandbytes.

    With double quantization s_block takes 1 byte, and 256 of them share 4.
    """

    table: ClassVar[Literal["nf4", "fp4"]]

    double_quantization: bool = option(False, "the scales are quantized too, to 8 bits")

    def scale_bytes(self, out: int, into: int) -> int:
        blocks = self.scales(out, into)
        if not self.double_quantization:
            return super().scale_bytes(out, into)
        return blocks + 4 * (-(-blocks // SCALES_PER_SCALE) + 1)  # and the scales' mean

    def encode(self, weight: Tensor) -> weight_only.WeightCodes:
        group = SCALES_PER_SCALE if self.double_quantization else 0
        return four_bit.FourBit(weight, self.dtype, self.table, self.block, group)
