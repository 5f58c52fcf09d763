"""What a comparison of rows rests on: confidence intervals (Student's t), pairs of examples (McNemar), ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Examples:
    """Two predictors on the same examples.

    Args:
        n: the number of examples.
        one, other: how many the one has right and the other has wrong, and the other way round. Of several runs, the
            predictor that more of its runs have right.
    """

    n: int
    one: int
    other: int

    @property
    def p(self) -> float:
        """The exact two-sided p-value of McNemar's test: that of a fair coin for each example that they differ in."""
        return mcnemar(self.one, self.other)

    def __add__(self, more: Examples) -> Examples:
        return Examples(self.n + more.n, self.one + more.one, self.other + more.other)


def mcnemar(one: int, other: int) -> float:
    """Return P(|X - m/2| >= |one - m/2|) of X ~ Binomial(m = one + other, 1/2); 1 without a difference.

    McNemar, Psychometrika 12, 1947, in its exact form. Cost: min(one, other) products of integers of m bits.
    """
    m = one + other
    term = tail = 1  # m choose k, and the sum up to it
    for k in range(1, min(one, other) + 1):
        term = term * (m - k + 1) // k
        tail += term
    return min(1.0, float(Fraction(2 * tail, 2**m)))


def by_example(one: Sequence[Sequence[bool]], other: Sequence[Sequence[bool]]) -> Examples:
    """Compare two predictors example by example.

    Args:
        one, other: [runs][examples], whether a run's prediction is right. An example counts for the predictor that has
            it right in the larger share of its runs, so that each example counts once, however many runs there are.
    """
    shares = [[Fraction(sum(each), len(runs)) for each in zip(*runs, strict=True)] for runs in (one, other)]
    pairs = list(zip(*shares, strict=True))
    return Examples(len(pairs), sum(a > b for a, b in pairs), sum(a < b for a, b in pairs))


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return mean ± t s / sqrt(n) of `values`, s with ddof=1; None if s is undefined or 0 (one value, equal values)."""
    if len(values) < 2 or max(values) - min(values) <= 1e-9 * max(map(abs, values)):
        return None
    from scipy.special import stdtrit  # the quantile of Student's t; the import takes 0.5 s, and most tables need none

    mean = fmean(values)
    half = float(stdtrit(len(values) - 1, (1 + confidence) / 2)) * stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def mean_ranks(columns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return key -> mean over the columns of its dense rank, among the keys with a value in every column.

    The largest value has rank 1; equal values share a rank, and the next rank follows without a gap.
    """
    keys = [key for key in columns[0] if all(key in column for column in columns)] if columns else []
    orders = [sorted({column[key] for key in keys}, reverse=True) for column in columns]
    return {
        key: fmean(order.index(column[key]) + 1 for order, column in zip(orders, columns, strict=True)) for key in keys
    }
