"""4-bit codes with a look-up table of 16 values for every row, and chosen entries kept outside.

The tables are made by weighted k-means of every row at once, deterministic and near the global optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from zo_sweeps.core.memory_parts import Part
from zo_sweeps.engine.layers.weight_only import WeightCodes, rows_at_once

BITS = 4
VALUES = 1 << BITS
QUANTILES = 64  # of a row's values; between them the first partition has its borders
COSTS = (2 * QUANTILES + 2) ** 2  # errors of intervals that are computed per row
ROUNDS = 100  # of Lloyd's algorithm, at most; rows of language models take 10 to 40


class Lookup(WeightCodes):
    """w[r, j] = table[r, c[r, j]], or the entry's own value where it is kept: dense-and-sparse quantization.

    The table of a row holds the centroids of its values that are not kept (`centroids`), weighted by `sensitivity`
    [out, in] (None: all alike) and rounded to `dtype`, as kept entries are (flat indices, ascending); a code is that of
    the nearest entry of the table. Two codes share a byte, the first in its upper half; a row begins a byte.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype, kept: Tensor, sensitivity: Tensor | None) -> None:
        out, into = weight.shape
        super().__init__((out, into), dtype, weight.device)
        packed = torch.empty(out, -(-into // 2), dtype=torch.uint8, device=weight.device)
        table = torch.empty(out, VALUES, dtype=dtype, device=weight.device)
        for start in range(0, out, rows := rows_at_once(max(into, COSTS), weight.device)):
            stop = min(start + rows, out)
            part = weight[start:stop].float()
            weights = torch.ones_like(part) if sensitivity is None else sensitivity[start:stop].to(part, copy=True)
            mine = kept[(kept >= start * into) & (kept < stop * into)] - start * into
            weights.view(-1)[mine] = 0
            table[start:stop] = centroids(part, weights, VALUES).to(dtype)
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


def centroids(values: Tensor, weights: Tensor, k: int) -> Tensor:
    """Return the k centroids of every row that (nearly) minimize the weighted squared error.

        min over c and the assignment a of  sum_j weights_j (values_j - c_{a_j})^2,  for each row by itself

    In one dimension a cluster is an interval of the sorted values. The best partition with borders at quantiles is
    found exactly, by dynamic programming (quantiles of the density f^(1/3), f the weighted density of the values:
    asymptotically optimal, Panter and Dite, 1951); Lloyd's algorithm then moves the borders off the quantiles. No
    random numbers.

    Args:
        values: [rows, n], fp32, finite.
        weights: [rows, n], fp32, at least 0; a row of zeros counts as one of ones.
        k: centroids per row, at least 2.

    Returns [rows, k], fp64, ascending; a centroid repeats where a row has fewer than k distinct values. Cost: a sort,
    O(k QUANTILES^2) operations per row; memory: some 100 bytes per value, and 40 COSTS per row.
    """
    weights = torch.where(weights.sum(dim=1, keepdim=True) > 0, weights, 1.0)
    ascending, order = values.sort(dim=1, stable=True)
    x, s = ascending.double(), weights.gather(1, order).double()
    s = s / s.sum(dim=1, keepdim=True)
    sums = _Sums(x, s)
    return _lloyd(x, sums, _partition(sums, _borders(x, s), k))


class _Sums:
    """Prefix sums of a row's sorted values: of s, s x and s x^2 over its first i, i = 0 ... n."""

    def __init__(self, x: Tensor, s: Tensor) -> None:
        self.s, self.sx, self.sxx = (F.pad(part.cumsum(dim=1), (1, 0)) for part in (s, s * x, s * x * x))

    def means(self, borders: Tensor, empty: Tensor) -> Tensor:
        """Return the mean of every interval between consecutive borders; of one without weight, that of `empty`."""
        s, sx = (part.gather(1, borders).diff(dim=1) for part in (self.s, self.sx))
        return torch.where(s > 0, sx / s.clamp(min=1e-300), empty)


def _borders(x: Tensor, s: Tensor) -> Tensor:
    """Return where the first partition may divide a row: before and behind every quantile of s^(1/3) dx^(2/3)."""
    n = x.shape[1]
    # Each of equal values counts with the weight of all of them: none of a level that has weight is passed over.
    total = F.pad(s.cumsum(dim=1), (1, 0))
    before, behind = (total.gather(1, torch.searchsorted(x, x, right=right)) for right in (False, True))
    s = (behind - before).clamp_(min=0)
    gaps = F.pad(x.diff(dim=1), (1, 1), mode="replicate") if n > 1 else torch.ones_like(F.pad(x, (0, 1)))
    mass = (s * (gaps[:, 1:] + gaps[:, :-1]).square()).pow(1 / 3)
    mass = torch.where(mass.sum(dim=1, keepdim=True) > 0, mass, 1.0).cumsum(dim=1)
    at = (torch.arange(QUANTILES, device=x.device) + 0.5) / QUANTILES
    index = torch.searchsorted(mass, (at * mass[:, -1:]).contiguous()).clamp_(max=n - 1)
    ends = index.new_tensor([0, n]).expand(len(x), 2)
    return torch.cat([index, index + 1, ends], dim=1).sort(dim=1).values


def _partition(sums: _Sums, borders: Tensor, k: int) -> Tensor:
    """Return the means of the best k intervals between borders [rows, m]: D_t(j) = min_i D_{t-1}(i) + error(i, j)."""
    s, sx, sxx = (part.gather(1, borders) for part in (sums.s, sums.sx, sums.sxx))
    weight, first, second = (part[:, None, :] - part[:, :, None] for part in (s, sx, sxx))  # [rows, i, j]
    error = second.sub_(first.square_().div_(weight.clamp_(min=1e-300))).clamp_(min=0)
    m = borders.shape[1]
    backwards = torch.ones(m, m, dtype=torch.bool, device=s.device).tril(-1)
    error = error.float().masked_fill_(backwards, torch.inf)
    totals = [error[:, 0]]
    for _ in range(k - 2):
        totals.append((totals[-1][:, :, None] + error).amin(dim=1))
    end = torch.full((len(borders), 1), m - 1, dtype=torch.long, device=s.device)
    ends = [end]
    for total in reversed(totals):
        into_end = error.gather(2, end[:, :, None].expand(-1, m, 1))[:, :, 0]
        end = (total + into_end).argmin(dim=1, keepdim=True)
        ends.append(end)
    ends.append(torch.zeros_like(end))
    chosen = borders.gather(1, torch.cat(ends[::-1], dim=1))
    return sums.means(chosen, s.new_full((len(s), k), torch.nan))


def _lloyd(x: Tensor, sums: _Sums, centroids: Tensor) -> Tensor:
    """Return the centroids after moving each to the mean of the values nearest to it, until none moves."""
    # An interval without weight has no mean; its centroid repeats another one, and is sorted beside it.
    known = centroids.nan_to_num(nan=-torch.inf).cummax(dim=1).values
    lowest = centroids.nan_to_num(nan=torch.inf).amin(dim=1, keepdim=True)
    centroids = torch.maximum(known, lowest)
    ends = torch.tensor([0, x.shape[1]], device=x.device).expand(len(x), 2)
    for _ in range(ROUNDS):
        middles = (centroids[:, 1:] + centroids[:, :-1]) / 2
        inner = torch.searchsorted(x, middles)
        moved = sums.means(torch.cat([ends[:, :1], inner, ends[:, 1:]], dim=1), centroids)
        if torch.equal(moved, centroids):
            break
        centroids = moved.sort(dim=1).values
    return centroids
