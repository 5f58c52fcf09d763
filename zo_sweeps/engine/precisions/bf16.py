"""Frozen weights in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.precision import Precision


@dataclass(frozen=True)
class BF16(Precision):
    """Weights stored and multiplied in bfloat16: 2 bytes per value."""

    torch_name: ClassVar[str] = "bfloat16"
    bytes_per_value: ClassVar[float] = 2
