"""RGE with rows of its own for each direction, over the spread of the differences: GRZO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.estimators._population import deviation
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.estimator import TwoSided
from zo_sweeps.methods.points import Estimate, Point


@dataclass(frozen=True)
class RGEPerRow(TwoSided):
    """ghat = (1/q) sum_i g_i z_i, g_i = D_i / (2 eps s), D_i = f_i(theta + eps z_i) - f_i(theta - eps z_i).

    f_i is the loss of the i-th of the step's q minibatches of B examples (the method has B = 1), s the standard
    deviation of D_1, ..., D_q. The q directions cost the two passes over q B rows that one direction over all of them
    would. g_i has no unit of f: lr, q and eps set the length of a step. If all D are equal, g_i is 0.

    Cost: 2q forwards of B examples. Source: GRZO, 2025, with its sigma = 1e-3 as eps.
    """

    owns_rows: ClassVar[bool] = True
    compares: ClassVar[bool] = True

    q: int = option(16, "directions per step, each with a minibatch of its own", least=2)

    def on_linear(self, slopes: Sequence[float], points: Sequence[Point]) -> Sequence[float]:
        return self._over_spread([2 * self.eps * slope for slope in slopes])

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        differences = [plus - minus for plus, minus in zip(losses[::2], losses[1::2], strict=True)]
        return self._estimate(points, self._over_spread(differences), losses)

    def _over_spread(self, differences: Sequence[float]) -> list[float]:
        spread = deviation(differences) * 2 * self.eps
        return [D / spread if spread else 0.0 for D in differences]
