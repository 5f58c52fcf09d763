"""Ranks of rows, as the papers print them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean


def dense_ranks(values: Mapping[str, float], better: str) -> dict[str, int]:
    """Return key -> dense rank: 1 for the best; equal values share a rank, and the next rank follows without a gap."""
    order = sorted(set(values.values()), reverse=better == "higher")
    return {key: order.index(value) + 1 for key, value in values.items()}


def mean_ranks(columns: Iterable[Mapping[str, float]], better: str) -> dict[str, float]:
    """Return key -> mean over the columns of its dense rank, among the keys with a value in every column."""
    values = list(columns)
    if not values:
        return {}
    keys = [key for key in values[0] if all(key in column for column in values)]
    ranks = [dense_ranks({key: column[key] for key in keys}, better) for column in values]
    return {key: fmean(rank[key] for rank in ranks) for key in keys}
