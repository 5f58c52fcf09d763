"""Frozen weights as 4-bit normal floats: weight-only quantization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.precision import Precision


@dataclass(frozen=True)
class NF4(Precision):
    """Weights as 4-bit normal floats: 0.5 bytes per value, plus scales. Plans only; this version cannot store them."""

    bytes_per_value: ClassVar[float] = 0.5
    stored: ClassVar[bool] = False
