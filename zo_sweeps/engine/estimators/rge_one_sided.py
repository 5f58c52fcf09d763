"""RGE by forward differences: every query is compared with theta itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.estimator import ClippedDirections
from zo_sweeps.methods.points import Estimate, Point


@dataclass(frozen=True)
class RGEOneSided(ClippedDirections):
    """ghat = (1/q) sum_i g_i z_i with g_i = (f(theta + eps z_i) - f(theta)) / eps.

    Exact on a linear f; otherwise g_i has a bias of eps/2 z_i^T H z_i + O(eps^2), which cancels in a two-sided pair.
    Cost: q + 1 forwards of the batch, against 2q. Source: Nesterov and Spokoiny, Random gradient-free minimization of
    convex functions, 2017.
    """

    curvature: ClassVar[float] = 0.5

    def evaluations(self, d: int) -> int:
        return self.q + 1

    def points(self, seed: int, step: int) -> tuple[Point, ...]:
        keys = self._keys(seed, step)
        return Point(keys[0], 0.0), *(Point(key, self.eps) for key in keys)

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        coefs = self._clipped(self._quotients(losses))
        by_query = {point.key.query: g for point, g in zip(points[1:], coefs, strict=True)}
        return self._mean(points[0].key, by_query, losses[0])

    def _quotients(self, losses: Sequence[float]) -> list[float]:
        base, *moved = losses
        return [(loss - base) / self.eps for loss in moved]
