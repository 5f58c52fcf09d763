"""Frozen weights in float16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.methods.precision import Precision

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class FP16(Precision):
    """Weights stored and multiplied in float16: 2 bytes per value."""

    bytes_per_value: ClassVar[float] = 2
    backpropagates_on_cpu: ClassVar[bool] = False

    @property
    def dtype(self) -> torch.dtype:
        import torch

        return torch.float16
