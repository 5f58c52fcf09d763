"""The points of two-sided estimates, and their log. Not a member of the axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.estimator import Estimator
from zo_sweeps.methods.points import Estimate, NoiseKey, Point


@dataclass(frozen=True)
class TwoSided(Estimator):
    """theta + eps z_i and theta - eps z_i for each of q directions; the estimate is the mean of their g_i z_i."""

    q: int = option(1, "query budget: directions per step", least=1)
    eps: float = option(1e-3, "perturbation scale", above=0)

    @property
    def budget(self) -> int:
        return self.q

    def evaluations(self, d: int) -> int:
        return 2 * self.q

    def points(self, seed: int, step: int) -> tuple[Point, ...]:
        keys = [NoiseKey(seed, step, query) for query in range(self.q)]
        return tuple(Point(key, sign * self.eps) for key in keys for sign in (1.0, -1.0))

    def from_log(self, seed: int, step: int, coefs: Sequence[float]) -> Estimate:
        if len(coefs) != self.q:
            raise ValueError(f"step {step} has {len(coefs)} logged coefficients, but q = {self.q}")
        return Estimate.mean(seed, step, coefs, nan)

    def _estimate(self, points: Sequence[Point], coefs: Sequence[float], losses: Sequence[float]) -> Estimate:
        """Build the estimate from the coefficients of the queries that `points` has, in their order."""
        by_query = {point.key.query: g for point, g in zip(points[::2], coefs, strict=True)}
        key = points[0].key
        whole = [by_query.get(query, nan) for query in range(self.q)]
        return Estimate.mean(key.seed, key.step, whole, sum(losses) / len(losses))
