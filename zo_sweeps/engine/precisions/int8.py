"""Frozen weights as 8-bit integers: weight-only quantization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.precision import Precision


@dataclass(frozen=True)
class INT8(Precision):
    """Weights as 8-bit integers: 1 byte per value, plus scales. Plans only; this version cannot store them."""

    bytes_per_value: ClassVar[float] = 1
    stored: ClassVar[bool] = False
