"""Frozen weights in float16."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.methods.precision import Format, Precision


@dataclass(frozen=True)
class FP16(Precision):
    """Weights stored and multiplied in float16: 2 bytes per value."""

    @property
    def format(self) -> Format:
        return Format("float16", 2, backpropagates_on_cpu=False)
