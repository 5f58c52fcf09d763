"""Frozen weights in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.precision import Format, Precision


@dataclass(frozen=True)
class BF16(Precision):
    """Weights stored and multiplied in bfloat16: 2 bytes per value."""

    not_in_program: ClassVar[str] = "XNNPACK, which multiplies in a program, has no bf16 kernels"

    @property
    def format(self) -> Format:
        return Format("bfloat16", 2)
