"""The axis `precision`: how frozen weights are stored and multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.methods.definition import Definition

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Precision(Definition):
    """A storage format of frozen weights."""

    axis: ClassVar[str] = "precision"
    bytes_per_value: ClassVar[float] = 0.0
    torch_name: ClassVar[str] = ""  # name in torch of the weights' dtype
    stored: ClassVar[bool] = True  # False while storing weights this way is not implemented
    backpropagates_on_cpu: ClassVar[bool] = True

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights. Raises NotImplementedError for a precision without one."""
        import torch

        if not self.torch_name:
            raise NotImplementedError(self.name)

        dtype: torch.dtype = getattr(torch, self.torch_name)
        return dtype

    def bytes(self, values: int) -> int:
        """Return the bytes that this many stored values take."""
        return int(values * self.bytes_per_value)
