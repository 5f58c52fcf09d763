"""The rows of a forward at P points: P groups one after the other, equal unless finished rows have left a generation.

Shapes: N rows, D features, P points.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from zo_sweeps.methods.points import rows_of_points


def sizes(points: int, rows: int) -> list[int]:
    """Return how many of a tensor's rows belong to each point; a row of the batch may be several (its tokens)."""
    left = rows_of_points.get()
    if left is None:
        return [rows // points] * points
    return [own * (rows // sum(left)) for own in left]


def present(points: int) -> list[int]:
    """Return the points that have rows."""
    left = rows_of_points.get()
    return [p for p in range(points) if left is None or left[p]]


def point_of_row(x: Tensor) -> Tensor | None:
    """Return the point of each row of a generation's tensor [N, ...], [N]; None: x is of none, or flattened."""
    left = rows_of_points.get()
    return _points(left, x.device) if left is not None and sum(left) == len(x) else None


def grouped(x: Tensor, points: int) -> Tensor:
    """Return rows [N, ..., D] as one group per point, [P, N / P * ..., D]: a view where the groups are equal.

    Unequal groups are copied, and filled up to the largest with rows that `ungrouped` drops. Without a computed shape
    for equal ones: `torch.export` could not tell that it holds for every number of tokens.
    """
    if (filled := _filled(x, points)) is None:
        groups: Tensor = x.unflatten(0, (points, -1))
        return groups.flatten(1, -2)
    return x.flatten(0, -2)[filled[0]]


def ungrouped(y: Tensor, x: Tensor) -> Tensor:
    """Return groups [P, N / P * ..., D] as rows with the leading shape of `x`."""
    if (filled := _filled(x, len(y))) is None:
        groups: Tensor = y.unflatten(1, (-1, *x.shape[1:-1]))
        return groups.flatten(0, 1)
    rows: Tensor = y.flatten(0, 1)[filled[1]].unflatten(0, x.shape[:-1])
    return rows


def _filled(x: Tensor, points: int) -> tuple[Tensor, Tensor] | None:
    """Return (row of each place in the filled groups [P, largest], place of each row [N]); None: they are equal."""
    left = rows_of_points.get()
    if left is None or len({*left}) == 1:
        return None
    return _places(tuple(sizes(points, x.numel() // x.shape[-1])), x.device)


@lru_cache(maxsize=2)
def _places(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    own = torch.tensor(sizes, device=device)[:, None]
    at = torch.arange(max(sizes), device=device)
    there = at < own
    return torch.where(there, own.cumsum(0) - own + at, 0), there.flatten().nonzero()[:, 0]


@lru_cache(maxsize=2)
def _points(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.arange(len(sizes), device=device).repeat_interleave(torch.tensor(sizes, device=device))
