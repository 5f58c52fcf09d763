"""One point per direction, which are compared with each other. Not a member of the axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.estimator import RandomDirections
from zo_sweeps.methods.points import Estimate, Point


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of some numbers around their mean, over their count."""
    mean = sum(values) / len(values)
    return sqrt(sum((value - mean) ** 2 for value in values) / len(values))


@dataclass(frozen=True)
class Population(RandomDirections):
    """An estimator whose points are theta + eps z_i, and whose g_i come from comparing their losses."""

    curvature: ClassVar[float | None] = 0.5
    compares: ClassVar[bool] = True

    q: int = option(8, "query budget: directions per step, one point each", least=2)

    def evaluations(self, d: int) -> int:
        return self.q

    def points(self, seed: int, step: int) -> tuple[Point, ...]:
        return tuple(Point(key, self.eps) for key in self._keys(seed, step))

    def shaped(self, losses: Sequence[float]) -> Sequence[float]:
        """Return the coefficients of points with these losses."""
        raise NotImplementedError

    def on_linear(self, slopes: Sequence[float], points: Sequence[Point]) -> Sequence[float]:
        return self.shaped([self.eps * slope for slope in slopes])

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        by_query = {point.key.query: g for point, g in zip(points, self.shaped(losses), strict=True)}
        return self._mean(points[0].key, by_query, sum(losses) / len(losses))
