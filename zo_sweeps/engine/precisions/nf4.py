"""Frozen weights as 4-bit codes whose table holds quantiles of a normal distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from zo_sweeps.engine.precisions._encoded import FourBitPrecision


@dataclass(frozen=True)
class NF4(FourBitPrecision):
    """w = table[c] * s_block; the table holds quantiles of a normal distribution.

    Source: QLoRA (Dettmers et al., 2023), section 3.
    """

    largest_error: ClassVar[float] = 0.152  # half of the widest gap, from -1 to -0.696
    table: ClassVar[Literal["nf4", "fp4"]] = "nf4"
