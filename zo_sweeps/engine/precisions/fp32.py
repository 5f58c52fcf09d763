"""Frozen weights in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.methods.precision import Precision

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class FP32(Precision):
    """Weights stored and multiplied in float32: 4 bytes per value."""

    bytes_per_value: ClassVar[float] = 4

    @property
    def dtype(self) -> torch.dtype:
        import torch

        return torch.float32
