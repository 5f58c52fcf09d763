"""The axis `precision`: how frozen weights are stored and multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.methods.definition import Definition

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Precision(Definition):
    """How frozen weights are stored."""

    axis: ClassVar[str] = "precision"
    bytes_per_value: ClassVar[float] = 0.0
    torch_name: ClassVar[str] = ""  # of the dtype of the weights
    stored: ClassVar[bool] = True  # whether weights can be stored so by now
    backpropagates_on_cpu: ClassVar[bool] = True

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights. Raises NotImplementedError for a precision that cannot be stored."""
        import torch

        if not self.torch_name:
            raise NotImplementedError(self.name)

        dtype: torch.dtype = getattr(torch, self.torch_name)
        return dtype

    def bytes(self, values: int) -> int:
        """Return the bytes of this many stored values."""
        return int(values * self.bytes_per_value)
