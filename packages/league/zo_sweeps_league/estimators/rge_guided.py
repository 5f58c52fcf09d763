"""RGE beside two scouting points for each direction: MeZO-GV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan, sqrt
from typing import ClassVar

from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.methods.estimator import SCOUTS
from zo_sweeps.methods.points import Estimate, Point


@dataclass(frozen=True)
class RGEGuided(RGE):
    """RGE, and h_i = (f(theta + s a_i) - f(theta + s b_i)) / s, s = eps / sqrt(2), for the scouts a_i, b_i of each z_i.

    Scouts are the queries q + 2i and q + 2i + 1 of a step. The log holds g_1, ..., g_q, h_1, ..., h_q. The estimate is
    RGE's; the perturbation `guided` draws z_i = (a_i - b_i) / sqrt(2), and keeps the better of them for the next step.
    s is the authors' eps. Cost: 4q forwards of the batch. Source: MeZO-GV, 2025 (the variant that evaluates the best
    seed again).
    """

    gives: ClassVar[str] = SCOUTS

    def evaluations(self, d: int) -> int:
        return 4 * self.q

    @property
    def _near(self) -> float:
        return self.eps / sqrt(2)

    def points(self, seed: int, step: int) -> tuple[Point, ...]:
        found: list[Point] = []
        for plus, minus in zip(*[iter(super().points(seed, step))] * 2, strict=True):
            first = self.q + 2 * plus.key.query
            found += [plus, minus, *(Point(plus.key._replace(query=first + i), self._near) for i in (0, 1))]
        return tuple(found)

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        pairs = [i for i, point in enumerate(points) if point.key.query < self.q]
        found = super().combine([points[i] for i in pairs], [losses[i] for i in pairs])
        at = {point.key.query: loss for point, loss in zip(points, losses, strict=True)}
        scouts = [(at.get(first, nan) - at.get(first + 1, nan)) / self._near for first in range(self.q, 3 * self.q, 2)]
        return replace(found, coefs=(*found.coefs, *scouts), loss=sum(losses) / len(losses))
