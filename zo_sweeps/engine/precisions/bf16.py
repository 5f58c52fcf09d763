"""Frozen weights in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.methods.precision import Format, Precision


@dataclass(frozen=True)
class BF16(Precision):
    """Weights stored and multiplied in bfloat16: 2 bytes per value."""

    @property
    def format(self) -> Format:
        return Format("bfloat16", 2)
