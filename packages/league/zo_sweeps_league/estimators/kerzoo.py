"""RGE at a random distance along each direction, weighted by a kernel: KerZOO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zo_sweeps.engine.later import noise
from zo_sweeps.methods.estimator import TwoSided
from zo_sweeps.methods.points import Estimate, NoiseKey, Point


@dataclass(frozen=True)
class KerZOO(TwoSided):
    """ghat = (1/q) sum_i g_i z_i, g_i = K(r_i) (f(theta + eps r_i z_i) - f(theta - eps r_i z_i)) / (2 eps).

    r is uniform on [-1, 1], drawn for each direction, and K(r) = 15/4 r (5 - 7 r^2): E[r K] = 1 and E[r^3 K] = 0. Over
    r, the mean of g_i is f' along z_i without the eps^2 f''' / 6 of RGE, up to O(eps^4). On a quadratic both are exact
    in the mean, and RGE for every r: E[(r K)^2] = 25/4 is what the kernel costs. Cost: 2q forwards of the batch.
    Source: Mi et al., KerZOO: Kernel function informed zeroth-order optimization for accurate and accelerated LLM
    fine-tuning, 2025, with its constant C = 1.
    """

    @property
    def reach(self) -> float:
        return self.eps

    def points(self, seed: int, step: int) -> tuple[Point, ...]:
        moved = ((key, sign * _distance(key)) for key in self._keys(seed, step) for sign in (1.0, -1.0))
        return tuple(Point(key, self.eps * distance) for key, distance in moved)

    def on_linear(self, slopes: Sequence[float], points: Sequence[Point]) -> Sequence[float]:
        distances = [_distance(point.key) for point in points[::2]]
        return [_kernel(r) * r * slope for r, slope in zip(distances, slopes, strict=True)]

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        pairs = zip(points[::2], losses[::2], losses[1::2], strict=True)
        coefs = [_kernel(_distance(at.key)) * (plus - minus) / (2 * self.eps) for at, plus, minus in pairs]
        return self._estimate(points, coefs, losses)


def _distance(key: NoiseKey) -> float:
    """Return the direction's r, never 0."""
    word = noise.words_of(key, "kerzoo/r")[0]
    return (2 * (word % (1 << 32) >> 9) + 1) / (1 << 23) - 1


def _kernel(r: float) -> float:
    return 3.75 * r * (5 - 7 * r * r)
