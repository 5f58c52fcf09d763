"""4-bit codes with a look-up table of 16 values for every row, and chosen entries kept outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from zo_sweeps.core.memory_parts import Part
from zo_sweeps.engine.chunk import rows_at_once
from zo_sweeps.engine.codes import kmeans
from zo_sweeps.engine.layers.weight_only import WeightCodes

BITS = 4
VALUES = 1 << BITS


class Lookup(WeightCodes):
    """w[r, j] = table[r, c[r, j]], or the entry's own value where it is kept: dense-and-sparse quantization.

    The table of a row holds the centroids of its values that are not kept (`kmeans.centroids`), weighted by
    `sensitivity` and rounded to `dtype`; a code is that of the nearest entry of the table. Two codes share a byte, the
    first in its upper half; a row begins a byte.

    Args:
        weight: [out, in], any floating-point dtype; encoded in fp32, some rows at a time.
        dtype: of decoded values, of the table and of the kept entries.
        kept: [k] flat indices of the entries that are kept, ascending.
        sensitivity: [out, in], the weight of each entry's squared error; None: all alike.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype, kept: Tensor, sensitivity: Tensor | None) -> None:
        out, into = weight.shape
        super().__init__((out, into), dtype, weight.device)
        packed = torch.empty(out, -(-into // 2), dtype=torch.uint8, device=weight.device)
        table = torch.empty(out, VALUES, dtype=dtype, device=weight.device)
        for start in range(0, out, rows := rows_at_once(max(into, kmeans.COSTS), weight.device)):
            stop = min(start + rows, out)
            part = weight[start:stop].float()
            weights = torch.ones_like(part) if sensitivity is None else sensitivity[start:stop].to(part, copy=True)
            mine = kept[(kept >= start * into) & (kept < stop * into)] - start * into
            weights.view(-1)[mine] = 0
            table[start:stop] = kmeans.centroids(part, weights, VALUES).to(dtype)
            stored = table[start:stop].float()
            codes = torch.searchsorted((stored[:, 1:] + stored[:, :-1]) / 2, part, out_int32=True).to(torch.uint8)
            codes = F.pad(codes, (0, into % 2))
            packed[start:stop] = (codes[:, ::2] << BITS) | codes[:, 1::2]
        self.register_buffer("values", packed)
        self.register_buffer("table", table)
        self.register_buffer("kept", kept.to(torch.int32))
        self.register_buffer("kept_values", weight.reshape(-1)[kept].to(dtype))
        self.table: Tensor
        self.kept: Tensor
        self.kept_values: Tensor

    def forward(self) -> Callable[[int, int], Tensor]:
        into = self.shape[1]

        def decode(start: int, stop: int) -> Tensor:
            table = self.table[start:stop]
            # A byte is decoded at once, by a table of 256 pairs: half as many reads as one per value.
            shape = (stop - start, VALUES, VALUES)
            pairs = torch.stack([table[:, :, None].expand(shape), table[:, None, :].expand(shape)], dim=3)
            pairs = pairs.view(torch.int32 if table.element_size() == 2 else torch.int64).view(stop - start, -1)
            rows = pairs.gather(1, self.values[start:stop].long()).view(table.dtype)[:, :into].contiguous()
            first, last = self._kept_of(start, stop)
            if first < last:
                place = self.kept[first:last].long() - start * into
                rows.view(-1).index_copy_(0, place, self.kept_values[first:last])
            return rows

        return decode

    def tensors(self) -> Iterator[tuple[Part, Tensor]]:
        for part, tensor in super().tensors():
            yield Part.SPARSE if tensor is self.kept or tensor is self.kept_values else part, tensor

    def _kept_of(self, start: int, stop: int) -> tuple[int, int]:
        """Return which of the kept entries are in the rows from `start` to `stop`."""
        out, into = self.shape
        if (start, stop) == (0, out):
            return 0, len(self.kept)  # nothing is read back from a GPU
        first, last = torch.searchsorted(self.kept, self.kept.new_tensor([start * into, stop * into])).tolist()
        return first, last
