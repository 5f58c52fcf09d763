"""Frozen weights as 4-bit codes whose table holds floating-point numbers of 1 sign, 2 exponent and 1 mantissa bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from zo_sweeps.engine.precisions._encoded import FourBitPrecision


@dataclass(frozen=True)
class FP4(FourBitPrecision):
    """w = table[c] * s_block; the table holds floating-point numbers of 1 sign, 2 exponent and 1 mantissa bits.

    Source: bitsandbytes; QLoRA (Dettmers et al., 2023), table 2.
    """

    largest_error: ClassVar[float] = 1 / 6  # half of the widest gap, from 2/3 to 1
    table: ClassVar[Literal["nf4", "fp4"]] = "fp4"
