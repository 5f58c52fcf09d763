"""8-bit integers with a scale per row, and 4-bit integers with a scale per block."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
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


class FourBitIntegers(IntegerCodes):
    """w = c * s_block / 7, s_block = max |w| of a block of consecutive values, row-major; c from -7 to 7.

    Two codes share a byte, as c + 8, the first in the low half.

    Args:
        weight: [out, in], any floating-point dtype; encoded in fp32, some blocks at a time.
        dtype: of decoded values, rounded once.
        block: values per scale, even; the last block is filled up with zeros.
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
