"""4-bit codes of bitsandbytes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from zo_sweeps.engine.layers.weight_only import WeightCodes, rows_at_once

TABLE = 16  # values


@cache
def library() -> Any:
    """Import bitsandbytes' functions."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of a kernel that is not used here
    from bitsandbytes import functional

    return functional


class FourBit(WeightCodes):
    """w = table[c] * s_block, with s_block the largest |w| of a block of consecutive values, row-major.

    With `group` > 0 the scales are quantized too (QLoRA's double quantization), `group` of them per scale of their own:
    s = mean + table8[c'] * s'_group, to 8 bits. bitsandbytes encodes and decodes. Its products are not used: on some
    CPUs they are in bfloat16 whatever was asked for. The last block is filled up with zeros.
    """

    def __init__(
        self, weight: Tensor, dtype: torch.dtype, table: Literal["nf4", "fp4"], block: int, group: int
    ) -> None:
        functional = library()
        out, into = weight.shape
        super().__init__((out, into), dtype, weight.device)
        self._table, self._block, self._group = table, block, group
        blocks = -(-out * into // block)
        flat = weight.contiguous().view(-1)
        packed = torch.empty(blocks * block // 2, dtype=torch.uint8, device=weight.device)
        scales = torch.empty(blocks, device=weight.device)
        at_once = rows_at_once(block * TABLE, weight.device)  # blocks; on a CPU the library compares with all 16 values
        # On a CPU the library compiles its encoder anew for every shape unless told not to.
        with torch.compiler.set_stance("force_eager"):
            for first in range(0, blocks, at_once):
                last = min(first + at_once, blocks)
                part = flat[first * block : last * block]
                part = F.pad(part, (0, (last - first) * block - len(part)))
                codes, state = functional.quantize_4bit(part, blocksize=block, quant_type=table)
                packed[first * block // 2 : last * block // 2] = codes.view(-1)
                scales[first:last] = state.absmax
        self.register_buffer("values", packed)
        if group:
            mean = scales.mean()
            scales, state = functional.quantize_blockwise(scales - mean, blocksize=group)
            self.register_buffer("scales_mean", mean)
            self.register_buffer("scales_scales", state.absmax)
            self._scales_table = state.code  # of 256 values, the same for all weights
        self.register_buffer("scales", scales)
        self.scales_mean: Tensor
        self.scales_scales: Tensor

    def forward(self) -> Callable[[int, int], Tensor]:
        functional, scales = library(), self.decoded_scales()
        into, block = self.shape[1], self._block

        def decode(start: int, stop: int) -> Tensor:
            first, last = start * into // block, -(-stop * into // block)
            size = torch.Size([(last - first) * block])
            state = functional.QuantState(
                scales[first:last], shape=size, blocksize=block, quant_type=self._table, dtype=self.like.dtype
            )
            packed = self.values[first * block // 2 : last * block // 2].unsqueeze(1)
            values: Tensor = functional.dequantize_4bit(packed, state).view(-1)
            offset = start * into - first * block
            return values[offset : offset + (stop - start) * into].view(stop - start, into)

        return decode

    def decoded_scales(self) -> Tensor:
        if self.scales.dtype == torch.float32:  # not quantized, or trained
            return self.scales
        table = self._scales_table = self._scales_table.to(self.scales.device)
        decoded: Tensor = library().dequantize_blockwise(
            self.scales, absmax=self.scales_scales, code=table, blocksize=self._group
        )
        return decoded.add_(self.scales_mean)
