"""8-bit integers with a scale per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from zo_sweeps.engine.chunk import rows_at_once
from zo_sweeps.engine.layers.weight_only import IntegerCodes


class EightBit(IntegerCodes):
    """w = c * s_row / 127, s_row = max |w| of the row; the codes and scales of bitsandbytes' int8_vectorwise_quant.

    Args:
        weight: [out, in], any floating-point dtype; encoded in fp32, some rows at a time.
        dtype: of decoded values, rounded once.
    """

    largest: ClassVar[int] = 127

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        out, into = weight.shape
        super().__init__((out, into), dtype, weight.device)
        codes = torch.empty(out, into, dtype=torch.int8, device=weight.device)
        scales = torch.empty(out, 1, device=weight.device)
        for start in range(0, out, rows := rows_at_once(into, weight.device)):
            part = weight[start : start + rows].float()
            largest = part.abs().amax(dim=1, keepdim=True)
            scales[start : start + rows] = largest
            # A row of zeros keeps the scale 0, and decodes to zeros.
            codes[start : start + rows] = (part * (self.largest / largest.clamp(min=1e-38))).round_().to(torch.int8)
        self.register_buffer("values", codes)
        self.register_buffer("scales", scales)

    def forward(self) -> Callable[[int, int], Tensor]:
        values, steps = self.values if self.integers is None else self.integers, self.scales / self.largest

        def decode(start: int, stop: int) -> Tensor:
            if values.is_cuda:  # one kernel, which multiplies in fp32 and rounds once
                rows = torch.empty(stop - start, self.shape[1], dtype=self.like.dtype, device=values.device)
                return torch.mul(values[start:stop], steps[start:stop], out=rows)
            return values[start:stop].float().mul_(steps[start:stop]).to(self.like.dtype)

        return decode
