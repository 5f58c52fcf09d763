"""4-bit integers with a scale per group of a row, for products with activations of 8 bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from zo_sweeps.engine.chunk import rows_at_once
from zo_sweeps.engine.codes.integers import packed, unpacked
from zo_sweeps.engine.layers.weight_only import WeightCodes

LARGEST, SMALLEST = 7, -8
HALF = (LARGEST - SMALLEST) / 2
TINY = torch.finfo(torch.float32).smallest_normal
LEVELS = 255  # of an activation, above the lowest


class Groupwise(WeightCodes):
    """w = c * s_group, c = round(w / s) from -8 to 7; s = max |w| / 7.5 of the group, then rounded to bfloat16.

    The codes and scales of torchao's symmetric 4-bit quantization by groups, whose scales XNNPACK rounds to bfloat16.
    Two codes share a byte, as c + 8, the first in the low half. A decoded value is exact in fp32.

    Args:
        weight: [out, in], any floating-point dtype; encoded in fp32, some rows at a time.
        dtype: of decoded values.
        group: consecutive values of a row with one scale, even; the last group of a row is filled up with zeros.
    """

    spacing = 1 / LEVELS

    def __init__(self, weight: Tensor, dtype: torch.dtype, group: int) -> None:
        out, into = weight.shape
        super().__init__((out, into), dtype, weight.device)
        self.group, groups = group, -(-into // group)
        values = torch.empty(out, groups * group // 2, dtype=torch.uint8, device=weight.device)
        scales = torch.empty(out, groups, dtype=torch.bfloat16, device=weight.device)
        for start in range(0, out, rows := rows_at_once(into, weight.device)):
            part = F.pad(weight[start : start + rows].float(), (0, groups * group - into)).view(-1, groups, group)
            scale = (part.abs().amax(dim=2) / HALF).clamp_(min=TINY)
            codes = (part * (1 / scale).unsqueeze(2)).round_().clamp_(SMALLEST, LARGEST)
            values[start : start + rows] = packed(codes.to(torch.int8)).view(len(part), -1)
            scales[start : start + rows] = scale
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)

    def inputs(self, x: Tensor) -> Tensor:
        return rounded(x)

    def decoded_scales(self) -> Tensor:
        return self.scales.float()

    def unpack(self, start: int, stop: int) -> Tensor:
        """Return the codes of some rows, int8 [stop - start, groups, group], with those that fill up the rows."""
        return unpacked(self.values[start:stop].view(-1)).view(stop - start, -1, self.group)

    def forward(self) -> Callable[[int, int], Tensor]:
        scales, into = self.decoded_scales().unsqueeze(2), self.shape[1]

        def decode(start: int, stop: int) -> Tensor:
            rows = self.unpack(start, stop).float().mul_(scales[start:stop])
            return rows.view(stop - start, -1)[:, :into].contiguous().to(self.like.dtype)

        return decode


def rounded(x: Tensor) -> Tensor:
    """Return activations [..., in], fp32, rounded to 256 levels of their row: s * clamp(round(x / s), -z, 255 - z).

    s = (max(x, 0) - min(x, 0)) / 255 and z = round(-min(x, 0) / s), per row; 1 / s is computed, and s as its inverse.
    Zero is a level. Ties go to the even integer.

    Source: XNNPACK's dynamic quantization to 8 bits (`xnn_f32_qd8_asymmetric_quantization_params`). Its kernels for
    some CPUs take 1 / s an ulp off, so that an x within an ulp of the middle of two levels may get the other one.
    """
    low, high = x.amin(dim=-1, keepdim=True).clamp_(max=0), x.amax(dim=-1, keepdim=True).clamp_(min=0)
    inverse = torch.where(high > low, LEVELS / (high - low), 1)
    zero = (-low * inverse).round_()
    return (x * inverse).round_().clamp_(-zero, LEVELS - zero).mul_(1 / inverse)
