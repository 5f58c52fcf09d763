"""Ranks of rows, as the papers print them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean


def dense_ranks(values: Mapping[str, float], better: str) -> dict[str, int]:
    """Key -> rank: 1 for the best; equal values share a rank, and no rank is left out after them."""
    order = sorted(set(values.values()), reverse=better == "higher")
    return {key: order.index(value) + 1 for key, value in values.items()}


def mean_ranks(columns: Iterable[Mapping[str, float]], better: str) -> dict[str, float]:
    """Key -> mean over the columns of its dense rank, among the keys with a value in every column."""
    given = list(columns)
    if not given:
        return {}
    keys = [key for key in given[0] if all(key in column for column in given)]
    ranks = [dense_ranks({key: column[key] for key in keys}, better) for column in given]
    return {key: fmean(rank[key] for rank in ranks) for key in keys}
