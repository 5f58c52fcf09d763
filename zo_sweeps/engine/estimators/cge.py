"""CGE: the gradient, one coordinate at a time. The reference for small d."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.estimator import Estimator


@dataclass(frozen=True)
class CGE(Estimator):
    """ghat = sum_j g_j e_j with g_j = (f(theta + eps e_j) - f(theta - eps e_j)) / (2 eps), j = 0 .. d-1.

    Needs the perturbation `coordinate`, whose query j is sqrt(d) e_j: over d parameters this equals RGE with q = d and
    scale eps / sqrt(d), which `bind` returns. (The logged coefficients refer to sqrt(d) e_j.)

    No variance; exact on a quadratic. Cost: 2d forwards of the batch and d passes over the space per step, d logged
    numbers: for spaces of a few hundred parameters. Source: Liu et al., A primer on zeroth-order optimization in signal
    processing and machine learning, 2020.
    """

    coordinates: ClassVar[bool] = True

    eps: float = option(1e-3, "step along a coordinate", above=0)

    @property
    def at_theta(self) -> bool:
        return False

    def directions(self, d: int) -> int:
        return d

    def evaluations(self, d: int) -> int:
        return 2 * d

    def bind(self, d: int) -> RGE:
        return RGE(q=d, eps=self.eps / math.sqrt(d))
