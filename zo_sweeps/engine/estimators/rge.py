"""RGE: random directions, two-sided (the SPSA form)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from zo_sweeps.engine.types import Estimate, NoiseKey, Point


@dataclass(frozen=True)
class RGE:
    """ghat = (1/q) sum_i g_i z_i with projected_grad g_i = (f(theta + eps z_i) - f(theta - eps z_i)) / (2 eps).

    Args:
        q: query budget, directions a step. All of them see the same minibatch.
        eps: perturbation scale.

    Cost: 2q forwards of the batch. Source: MeZO Algorithm 1 (q = 1) and 2; P-RGE eq. 1, with the seed and gradient
    lists emptied once a step (the paper's Algorithm 2 prints that inside the query loop, which would keep only the
    last query).
    """

    q: int = 1
    eps: float = 1e-3

    def __post_init__(self) -> None:
        if self.q < 1 or self.eps <= 0:
            raise ValueError(f"RGE needs q >= 1 and eps > 0, got q={self.q}, eps={self.eps}")

    @property
    def evaluations(self) -> int:
        return 2 * self.q

    def bind(self, d: int) -> RGE:
        return self

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

    def _estimate(self, came: Sequence[Point], coefs: Sequence[float], loss: float) -> Estimate:
        """`came`: the first point of each of the queries that `coefs` are of."""
        found = {point.key.query: g for point, g in zip(came, coefs, strict=True)}
        key = came[0].key
        return Estimate.mean(key.seed, key.step, [found.get(query, nan) for query in range(self.q)], loss)
