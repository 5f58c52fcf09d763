"""Frozen weights as 4-bit integers with a scale per block: weight-only quantization on a uniform grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from zo_sweeps.engine.later import Tensor, scaled, weight_only
from zo_sweeps.engine.precisions._encoded import BlockPrecision
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.points import Theta


@dataclass(frozen=True)
class INT4(BlockPrecision):
    """w = c * s_block / 7 with c an integer from -7 to 7 and s_block the block's largest |w|: 0.5 bytes per value.

    A scale takes 4 bytes. Codes are rounded to the nearest, without data (GPTQ, whose models QES trains, chooses them
    by their effect on activations, among 16 values; the grid is symmetric here and so has 15). While they are trained,
    codes take 1 byte each.

    Source: symmetric round-to-nearest quantization by groups, as the baseline of GPTQ (Frantar et al., 2023).
    """

    largest_error: ClassVar[float] = 0.5 / 7  # half a step
    stores: ClassVar[frozenset[Theta]] = frozenset({Theta.SCALES, Theta.CODES})

    block: Literal[32, 64, 128, 256, 512, 1024] = option(128, "consecutive values of a row-major weight with one scale")

    def unpacked_bytes(self, out: int, into: int) -> int:
        return out * into - self.scales(out, into) * self.block // 2

    def encode(self, weight: Tensor) -> weight_only.WeightCodes:
        return scaled.FourBitIntegers(weight, self.dtype, self.block)
