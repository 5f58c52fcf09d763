"""RGE: random directions, two-sided (the SPSA form)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.estimator import TwoSided
from zo_sweeps.methods.points import Estimate, Point


@dataclass(frozen=True)
class RGE(TwoSided):
    """ghat = (1/q) sum_i g_i z_i with projected_grad g_i = (f(theta + eps z_i) - f(theta - eps z_i)) / (2 eps).

    Args:
        q: query budget, directions per step. All of them see the same minibatch.
        clip: C > 0 bounds projected_grad to [-C, C], as QZO does; 0 does not.

    Cost: 2q forwards of the batch. Source: MeZO Algorithm 1 (q = 1) and 2; P-RGE eq. 1, with the seed and gradient
    lists cleared once per step (the paper's Algorithm 2 prints this inside the query loop, which would keep only the
    last query).
    """

    clip: float = option(0.0, "largest |projected_grad|; 0: any", least=0, added=True, kw_only=True)

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        coefs = [(plus - minus) / (2 * self.eps) for plus, minus in zip(losses[::2], losses[1::2], strict=True)]
        return self._estimate(points, self._clipped(coefs), losses)

    def _clipped(self, coefs: Sequence[float]) -> list[float]:
        most = self.clip or inf
        return [min(max(g, -most), most) for g in coefs]
