"""Base of the precisions whose weights are decoded by the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zo_sweeps.methods.precision import WeightOnlyPrecision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from zo_sweeps.engine.layers.weight_only import WeightCodes, WeightOnly


@dataclass(frozen=True)
class Encoded(WeightOnlyPrecision):
    """A precision given by its codes: `encode`, and the bytes they take."""

    def encode(self, weight: Tensor) -> WeightCodes:
        """Return a contiguous weight [out, in] as codes, on its device."""
        raise NotImplementedError

    def encode_weighted(self, weight: Tensor, sensitivity: Tensor) -> WeightCodes:
        """Return a contiguous weight [out, in] as codes that are made by the sensitivity of its entries, [out, in]."""
        raise NotImplementedError

    def stored(self, layer: nn.Module, weight: Tensor, sensitivity: Tensor | None = None) -> nn.Module:
        from zo_sweeps.engine import linear

        transposed = linear.is_transposed(layer)
        weight = (weight.t() if transposed else weight).contiguous()
        if sensitivity is None:
            return self._module(layer, self.encode(weight))
        sensitivity = (sensitivity.t() if transposed else sensitivity).contiguous()
        return self._module(layer, self.encode_weighted(weight, sensitivity))

    def restored(self, layer: nn.Module, shape: tuple[int, int], buffers: Mapping[str, Tensor]) -> nn.Module:
        from zo_sweeps.engine.layers.weight_only import ENTRIES, ENTRY_VALUES, Entries

        coded = {name: buffer for name, buffer in buffers.items() if name not in (ENTRIES, ENTRY_VALUES)}
        scheme = self.encode(next(iter(coded.values())).new_zeros(1, shape[1], dtype=self.dtype))
        module = self._module(layer, scheme.holding(shape, coded))
        if ENTRIES in buffers:
            module.entries = Entries(buffers[ENTRIES], buffers[ENTRY_VALUES], shape)
        return module

    @staticmethod
    def _module(layer: nn.Module, codes: WeightCodes) -> WeightOnly:
        from zo_sweeps.engine import linear
        from zo_sweeps.engine.layers.weight_only import WeightOnly

        bias: Any = layer.bias  # a tensor or None: `layer` is a Linear or a Conv1D
        return WeightOnly(codes, bias, linear.is_transposed(layer))
