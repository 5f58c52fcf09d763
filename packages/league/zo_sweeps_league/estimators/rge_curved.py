"""RGE with the loss at theta itself, for the second derivatives along the directions: HiZOO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import ClassVar

from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.methods.estimator import CURVATURE
from zo_sweeps.methods.points import Estimate, NoiseKey, Point


@dataclass(frozen=True)
class RGECurved(RGE):
    """RGE, and c_i = (f(theta + eps z_i) + f(theta - eps z_i) - 2 f(theta)) / eps^2 for each direction.

    The log holds g_1, ..., g_q, c_1, ..., c_q. The estimate is RGE's; the perturbation `curvature` reads c.

    On a quadratic c_i = z_i^T H z_i exactly. It is a difference of losses over eps^2: with losses in fp32 its rounding
    is about 1e-7 |f| / eps^2, .1 at eps = 1e-3. Cost: 2q + 1 forwards of the batch (the released code: 4 at q = 1).
    Source: HiZOO (Zhao et al., 2024).
    """

    gives: ClassVar[str] = CURVATURE

    def evaluations(self, d: int) -> int:
        return 2 * self.q + 1

    def points(self, seed: int, step: int) -> tuple[Point, ...]:
        return (Point(NoiseKey(seed, step, 0), 0.0), *super().points(seed, step))

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        base, *moved = losses
        pairs = zip(points[1::2], moved[::2], moved[1::2], strict=True)
        curvatures = {point.key.query: (plus + minus - 2 * base) / self.eps**2 for point, plus, minus in pairs}
        found = super().combine(points[1:], moved)
        coefs = (*found.coefs, *(curvatures.get(query, nan) for query in range(self.q)))
        return replace(found, coefs=coefs, loss=base)
