"""Frozen weights in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.precision import Precision


@dataclass(frozen=True)
class FP32(Precision):
    """Weights stored and multiplied in float32: 4 bytes per value."""

    torch_name: ClassVar[str] = "float32"
    bytes_per_value: ClassVar[float] = 4
