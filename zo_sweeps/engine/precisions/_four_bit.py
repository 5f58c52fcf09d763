"""Frozen weights as 4-bit codes of bitsandbytes: NF4 and FP4 differ in the table of 16 values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from zo_sweeps.engine.precisions._encoded import Encoded
from zo_sweeps.methods.definition import option

if TYPE_CHECKING:
    from torch import Tensor

    from zo_sweeps.engine.layers.weight_only import WeightCodes


SCALES_PER_SCALE = 256  # with double quantization, as in bitsandbytes


@dataclass(frozen=True)
class FourBitPrecision(Encoded):
    """w = table[c] * s_block, c of 4 bits, s_block the largest |w| of a block: 0.5 bytes per value, 4 per block.

    With double quantization s_block takes 1 byte, and 256 of them share 4. The last block is filled up with zeros.
    """

    table: ClassVar[Literal["nf4", "fp4"]]

    block: Literal[32, 64, 128, 256, 512, 1024] = option(64, "consecutive values of a row-major weight with one scale")
    double_quantization: bool = option(False, "the scales are quantized too, to 8 bits")

    def scales(self, out: int, into: int) -> int:
        return -(-out * into // self.block)

    def code_bytes(self, out: int, into: int) -> int:
        return self.scales(out, into) * self.block // 2 + self.scale_bytes(out, into)

    def scale_bytes(self, out: int, into: int) -> int:
        blocks = self.scales(out, into)
        if not self.double_quantization:
            return 4 * blocks
        return blocks + 4 * (-(-blocks // SCALES_PER_SCALE) + 1)  # and the scales' mean

    def encode(self, weight: Tensor) -> WeightCodes:
        from zo_sweeps.engine.codes.four_bit import FourBit

        group = SCALES_PER_SCALE if self.double_quantization else 0
        return FourBit(weight, self.dtype, self.table, self.block, group)
