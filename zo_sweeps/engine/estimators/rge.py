"""RGE: random directions, two-sided (the SPSA form)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zo_sweeps.methods.estimator import ClippedDirections, TwoSided
from zo_sweeps.methods.points import Estimate, Point


@dataclass(frozen=True)
class RGE(ClippedDirections, TwoSided):
    """ghat = (1/q) sum_i g_i z_i with projected_grad g_i = (f(theta + eps z_i) - f(theta - eps z_i)) / (2 eps).

    Args:
        q: query budget, directions per step. All of them see the same minibatch.
        clip: bounds projected_grad.

    Cost: 2q forwards of the batch. Source: MeZO Algorithm 1 (q = 1) and 2; P-RGE eq. 1, with the seed and gradient
    lists cleared once per step (the paper's Algorithm 2 prints this inside the query loop, which would keep only the
    last query).
    """

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        coefs = [(plus - minus) / (2 * self.eps) for plus, minus in zip(losses[::2], losses[1::2], strict=True)]
        return self._estimate(points, self._clipped(coefs), losses)
