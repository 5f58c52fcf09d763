"""Frozen weights in float16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.precision import Precision


@dataclass(frozen=True)
class FP16(Precision):
    """Weights stored and multiplied in float16: 2 bytes per value."""

    torch_name: ClassVar[str] = "float16"
    bytes_per_value: ClassVar[float] = 2
    backpropagates_on_cpu: ClassVar[bool] = False
