"""Frozen weights in float32."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.methods.precision import Format, Precision


@dataclass(frozen=True)
class FP32(Precision):
    """Weights stored and multiplied in float32: 4 bytes per value."""

    @property
    def format(self) -> Format:
        return Format("float32", 4)
