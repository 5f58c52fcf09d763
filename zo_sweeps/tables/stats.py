"""Paired differences between the rows of a table, with a confidence interval (Student's t)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev

from zo_sweeps.tables.cells import Table

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """The mean of the paired differences `row` − `other`, in the table's unit.

    Args:
        row, other: keys of the rows.
        n, columns: number of pairs, and of columns that they come from.
        low, high: ends of the confidence interval of the mean; None with a single pair, or where all pairs are equal.
    """

    row: str
    other: str
    mean: float
    n: int
    columns: int
    low: float | None
    high: float | None

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def t_probability(t: float, df: int) -> float:
    """P(|T| <= t) of Student's t with `df` degrees of freedom, exactly.

    With theta = arctan(t / sqrt(df)), s = sin(theta), c = cos(theta):
        df odd: 2/pi (theta + s (c + 2/3 c^3 + ... + (2·4···(df-3)) / (3·5···(df-2)) c^(df-2)))
        df even: s (1 + 1/2 c^2 + ... + (1·3···(df-3)) / (2·4···(df-2)) c^(df-2))
    Cost: df / 2 terms. Source: Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    if df < 1:
        raise ValueError(f"degrees of freedom must be at least 1, not {df}")
    theta = math.atan2(t, math.sqrt(df))
    s, c = math.sin(theta), math.cos(theta)
    odd = df % 2
    term, total = (c if odd else 1.0), 0.0
    for k in range(2 + odd, df + 1, 2):  # k - 1 over k is the ratio of a term to the one before
        total += term
        term *= c * c * (k - 1) / k
    return 2 / math.pi * (theta + s * total) if odd else s * total


def t_quantile(confidence: float, df: int) -> float:
    """The t with P(|T| <= t) = `confidence`, by bisection: half-width of a two-sided interval in standard errors."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}")
    low, high = 0.0, 1.0
    while t_probability(high, df) < confidence:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_probability(middle, df) < confidence else (low, middle)
    return high


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """mean ± t s / sqrt(n) of `values`, s with ddof=1; None where s says nothing (one value, or equal ones)."""
    if len(values) < 2 or max(values) - min(values) <= 1e-9 * max(map(abs, values)):
        return None
    mean = fmean(values)
    half = t_quantile(confidence, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def differences(table: Table, confidence: float = CONFIDENCE) -> list[Difference]:
    """Every row against every later one: paired over the seeds and columns in which both have a value.

    A run that serves several seeds (zero-shot) is paired with each of them. Rows without a common pair are left out,
    and so are columns with a metric of their own, in another unit.
    Cost: rows^2 · columns · seeds.
    """
    found = []
    for (row, _), (other, _) in combinations(table.rows, 2):
        pairs, columns = [], 0
        for key, _ in table.columns:
            if key in table.spec.measures:
                continue
            one, two = table.cells[row, key].values, table.cells[other, key].values
            common = [seed for seed in one if seed in two]
            columns += bool(common)
            pairs += [one[seed] - two[seed] for seed in common]
        if pairs:
            low, high = interval(pairs, confidence) or (None, None)
            found.append(Difference(row, other, fmean(pairs), len(pairs), columns, low, high))
    return found
