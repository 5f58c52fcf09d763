"""RGE: random directions, two-sided (the SPSA form)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import ClassVar

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.estimator import Estimator
from zo_sweeps.methods.points import Estimate, NoiseKey, Point


@dataclass(frozen=True)
class RGE(Estimator):
    """ghat = (1/q) sum_i g_i z_i with projected_grad g_i = (f(theta + eps z_i) - f(theta - eps z_i)) / (2 eps).

    Args:
        q: query budget, directions per step. All of them see the same minibatch.
        eps: perturbation scale.
        clip: C > 0 bounds projected_grad to [-C, C], as QZO does; 0 does not.

    Cost: 2q forwards of the batch. Source: MeZO Algorithm 1 (q = 1) and 2; P-RGE eq. 1, with the seed and gradient
    lists cleared once per step (the paper's Algorithm 2 prints this inside the query loop, which would keep only the
    last query).
    """

    not_in_program: ClassVar[str] = ""

    q: int = option(1, "query budget: directions per step", least=1)
    eps: float = option(1e-3, "perturbation scale", above=0)
    clip: float = option(0.0, "largest |projected_grad|; 0: any", least=0, added=True, kw_only=True)

    @property
    def budget(self) -> int:
        return self.q

    @property
    def span(self) -> float:
        return 0.0 if self.clip else 2 * self.eps

    def evaluations(self, d: int) -> int:
        return 2 * self.q

    def points(self, seed: int, step: int) -> tuple[Point, ...]:
        keys = [NoiseKey(seed, step, query) for query in range(self.q)]
        return tuple(Point(key, sign * self.eps) for key in keys for sign in (1.0, -1.0))

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        coefs = [(plus - minus) / (2 * self.eps) for plus, minus in zip(losses[::2], losses[1::2], strict=True)]
        return self._estimate(points[::2], coefs, sum(losses) / len(losses))

    def from_log(self, seed: int, step: int, coefs: Sequence[float]) -> Estimate:
        if len(coefs) != self.q:
            raise ValueError(f"step {step} has {len(coefs)} logged coefficients, but q = {self.q}")
        return Estimate.mean(seed, step, coefs, nan)

    def _estimate(self, first: Sequence[Point], coefs: Sequence[float], loss: float) -> Estimate:
        """Build the estimate; `first` holds the first point of each query, in the order of `coefs`."""
        most = self.clip or inf
        by_query = {point.key.query: min(max(g, -most), most) for point, g in zip(first, coefs, strict=True)}
        key = first[0].key
        return Estimate.mean(key.seed, key.step, [by_query.get(query, nan) for query in range(self.q)], loss)
