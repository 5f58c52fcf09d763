"""CGE: the gradient, one coordinate after the other. The reference for small d."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zo_sweeps.engine.estimators.rge import RGE


@dataclass(frozen=True)
class CGE(RGE):
    """ghat = sum_j g_j e_j with g_j = (f(theta + eps e_j) - f(theta - eps e_j)) / (2 eps), j = 0 .. d-1.

    It goes with the perturbation `coordinate`, whose query j is sqrt(d) e_j: then this is RGE with q = d and a scale of
    eps / sqrt(d), which is what `bind` returns. (The logged coefficients are those of sqrt(d) e_j.)

    Args:
        eps: how far a coordinate is moved.
        q: found by `bind`.

    No variance; exact on a quadratic. Cost: 2d forwards of the batch and d passes over the space a step, d logged
    numbers: for spaces of a few hundred parameters. Source: Liu et al., A primer on zeroth-order optimization in signal
    processing and machine learning, 2020.
    """

    def bind(self, d: int) -> RGE:
        return RGE(q=d, eps=self.eps / math.sqrt(d))
