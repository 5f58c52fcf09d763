"""Generators that repeat: where a run's directions start in the cycle, and how many starts there are."""

from __future__ import annotations

from math import gcd
from typing import Literal

Advance = Literal["leftover", "coprime"]


def advance(rule: Advance, used: int, period: int) -> int:
    """Return the distance from one direction's start to the next.

    `leftover`: the next direction starts where the previous one stopped, `used` places on. `coprime`: the next distance
    that shares no factor with the period, so that every place of the cycle becomes a start before one returns.
    """
    distance = used
    while rule == "coprime" and gcd(distance, period) > 1:
        distance += 1
    return distance


def starts(distance: int, period: int) -> int:
    """Return the number of distinct values of t * distance mod period, t = 0, 1, ...: period / gcd(distance, period).

    t * distance and t' * distance agree mod the period if and only if period / gcd divides t - t'.
    """
    return period // gcd(distance, period)
