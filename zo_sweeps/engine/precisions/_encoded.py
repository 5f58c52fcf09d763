"""Base of the precisions whose weights are decoded by the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zo_sweeps.methods.precision import WeightOnlyPrecision

if TYPE_CHECKING:
    from torch import Tensor, nn

    from zo_sweeps.engine.layers.weight_only import Codes


@dataclass(frozen=True)
class Encoded(WeightOnlyPrecision):
    """A precision given by its codes: `encode`, and the bytes they take."""

    def encode(self, weight: Tensor) -> Codes:
        """Return a contiguous weight [out, in] as codes, on its device."""
        raise NotImplementedError

    def stored(self, layer: nn.Module, weight: Tensor) -> nn.Module:
        from zo_sweeps.engine import linear
        from zo_sweeps.engine.layers.weight_only import WeightOnly

        transposed = linear.is_transposed(layer)
        codes = self.encode((weight.t() if transposed else weight).contiguous())
        return WeightOnly(codes, layer.bias, transposed)  # type: ignore[arg-type]
