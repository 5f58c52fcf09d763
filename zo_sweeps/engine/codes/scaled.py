"""Integers times scales: 8 bits with a scale per row; 4 bits with one per block, or one per group of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from zo_sweeps.engine.layers.weight_only import IntegerCodes, WeightCodes, rows_at_once

LARGEST, SMALLEST = 7, -8  # of `Groupwise`
HALF = (LARGEST - SMALLEST) / 2
TINY = torch.finfo(torch.float32).smallest_normal
LEVELS = 255  # of an activation, above the lowest


class EightBit(IntegerCodes):
    """w = c * s_row / 127, s_row = max |w| of the row; the codes and scales of bitsandbytes' int8_vectorwise_quant."""

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

    def decoded_scales(self) -> Tensor:
        return self.scales.view(-1)  # trained as a vector: it does not decay

    def forward(self) -> Callable[[int, int], Tensor]:
        values = self.values if self.integers is None else self.integers
        steps = self.scales.view(-1, 1) / self.largest

        def decode(start: int, stop: int) -> Tensor:
            if values.is_cuda:  # one kernel, which multiplies in fp32 and rounds once
                rows = torch.empty(stop - start, self.shape[1], dtype=self.like.dtype, device=values.device)
                return torch.mul(values[start:stop], steps[start:stop], out=rows)
            return values[start:stop].float().mul_(steps[start:stop]).to(self.like.dtype)

        return decode


class FourBitIntegers(IntegerCodes):
    """w = c * s_block / 7, s_block = max |w| of a block of consecutive values, row-major; c from -7 to 7.

    Two codes share a byte, as c + 8, the first in the low half. A block is even; the last one is filled up with zeros.
    """

    largest: ClassVar[int] = 7

    def __init__(self, weight: Tensor, dtype: torch.dtype, block: int) -> None:
        out, into = weight.shape
        super().__init__((out, into), dtype, weight.device)
        self._block = block
        blocks, flat = -(-out * into // block), weight.view(-1)
        values = torch.empty(blocks * block // 2, dtype=torch.uint8, device=weight.device)
        scales = torch.empty(blocks, device=weight.device)
        at_once = rows_at_once(block, weight.device)
        for first in range(0, blocks, at_once):
            last = min(first + at_once, blocks)
            part = self._blocks(flat, first, last).float()
            scales[first:last] = part.abs().amax(dim=1)
            # A block of zeros keeps the scale 0, and decodes to zeros.
            part = part * (self.largest / scales[first:last, None].clamp(min=1e-38))
            values[first * block // 2 : last * block // 2] = packed(part.round_().to(torch.int8))
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)

    def unpack(self, values: Tensor) -> Tensor:
        out, into = self.shape
        return unpacked(values)[: out * into].view(out, into)

    def pack(self, integers: Tensor) -> Tensor:
        return packed(self._blocks(integers.view(-1), 0, len(self.scales)))

    def forward(self) -> Callable[[int, int], Tensor]:
        stored, integers, steps = self.values, self.integers, self.scales / self.largest
        into, block = self.shape[1], self._block

        def decode(start: int, stop: int) -> Tensor:
            first, last = start * into // block, -(-stop * into // block)
            if integers is not None:
                codes = self._blocks(integers.view(-1), first, last)
            else:
                codes = unpacked(stored[first * block // 2 : last * block // 2]).view(-1, block)
            rows = codes.float().mul_(steps[first:last, None]).view(-1)
            offset = start * into - first * block
            return rows[offset : offset + (stop - start) * into].view(stop - start, into).to(self.like.dtype)

        return decode

    def _blocks(self, flat: Tensor, first: int, last: int) -> Tensor:
        """Return blocks first..last-1 of a weight's values, [last - first, block], filled up with zeros."""
        part = flat[first * self._block : last * self._block]
        return F.pad(part, (0, (last - first) * self._block - len(part))).view(-1, self._block)


def packed(codes: Tensor) -> Tensor:
    """Return codes, int8, two in a byte, flat."""
    pairs = codes.view(-1, 2).add(8).to(torch.uint8)
    return pairs[:, 0] | pairs[:, 1] << 4


def unpacked(stored: Tensor) -> Tensor:
    """Return the codes in some bytes, uint8 [n], as int8 [2 n]."""
    return torch.stack([stored & 15, stored >> 4], dim=1).view(-1).to(torch.int8).sub_(8)


class Groupwise(WeightCodes):
    """w = c * s_group, c = round(w / s) from -8 to 7; s = max |w| / 7.5 of the group, then rounded to bfloat16.

    The codes and scales of torchao's symmetric 4-bit quantization by groups, whose scales XNNPACK rounds to bfloat16.
    Two codes share a byte, as c + 8, the first in the low half. A decoded value is exact in fp32. `group`: consecutive
    values of a row with one scale, even; the last group of a row is filled up with zeros.
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
