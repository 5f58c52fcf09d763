"""The axis `estimator`: the points at which f is evaluated, and the gradient estimate from their losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from typing import ClassVar

from zo_sweeps.methods.definition import Definition, option
from zo_sweeps.methods.points import Estimate, NoiseKey, Point

CURVATURE = "second derivatives along the directions"
SCOUTS = "which of two scouting points is lower"


@dataclass(frozen=True)
class Estimator(Definition):
    """A gradient estimator: `points` declares a step's points, `combine` turns their losses into ghat."""

    axis: ClassVar[str] = "estimator"
    curvature: ClassVar[float | None] = 0.0  # c of g_i = z_i . grad f + c eps z_i H z_i on a quadratic f; None: neither
    gives: ClassVar[str] = ""  # what q further coefficients are, after those of the q directions; "": there are none
    owns_rows: ClassVar[bool] = False  # each direction has a minibatch of its own: q of them in a step
    compares: ClassVar[bool] = False  # a direction's g_i depends on the points of the others, too
    centred: ClassVar[bool] = False  # the g_i of a step add up to 0, whatever the losses are
    coordinates: ClassVar[bool] = False  # runs through the coordinates; its perturbation must do so too

    @property
    def budget(self) -> int:
        """Directions per step that the user chooses: the q of E = q * B."""
        return 1

    def directions(self, d: int) -> int:
        """Return the directions per step over a space of d parameters."""
        return self.budget

    def evaluations(self, d: int) -> int:
        """Return the points per step over a space of d parameters: the forwards of the batch."""
        raise NotImplementedError

    def bind(self, d: int) -> Estimator:
        """Return the estimator for a space of d parameters; itself, if d does not matter."""
        return self

    def points(self, seed: int, step: int) -> tuple[Point, ...]:
        """Declare all points of a step."""
        raise NotImplementedError

    @property
    def reach(self) -> float:
        """The largest |scale| of the points of any step."""
        return max(abs(point.scale) for point in self.points(0, 1))

    @property
    def at_theta(self) -> bool:
        """Whether one of a step's points is theta itself."""
        return not all(point.scale for point in self.points(0, 1))

    @property
    def bound(self) -> float:
        """The largest |g_i|, whatever the losses are; infinite: there is none."""
        return inf

    def minibatches(self, step: int) -> range:
        """Return the numbers of a step's minibatches in the run's order, from 1: one, or one for each direction."""
        count = self.budget if self.owns_rows else 1
        return range((step - 1) * count + 1, step * count + 1)

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        """Combine losses into an estimate; queries missing from `points` (see engine/peers.py) get NaN."""
        raise NotImplementedError

    def on_linear(self, slopes: Sequence[float], points: Sequence[Point]) -> Sequence[float]:
        """Return the coefficients g_i on a linear f with slopes z_i . grad f along the directions of a step.

        An estimate of the gradient has the slopes themselves. A member that means something else says here what; it may
        depend on how far the step's `points` are.
        """
        return slopes

    def from_log(self, seed: int, step: int, coefs: Sequence[float]) -> Estimate:
        """Return a past step's estimate from its logged coefficients. Raises ValueError if their number is wrong."""
        raise NotImplementedError


@dataclass(frozen=True)
class RandomDirections(Estimator):
    """An estimator that is the mean of g_i z_i over q directions."""

    q: int = option(1, "query budget: directions per step", least=1)
    eps: float = option(1e-3, "perturbation scale", above=0)

    @property
    def budget(self) -> int:
        return self.q

    def from_log(self, seed: int, step: int, coefs: Sequence[float]) -> Estimate:
        expected, name = (2 * self.q, "2 q") if self.gives else (self.q, "q")
        if len(coefs) != expected:
            raise ValueError(f"step {step} has {len(coefs)} logged coefficients, but {name} = {expected}")
        return replace(Estimate.mean(seed, step, coefs[: self.q], nan), coefs=tuple(coefs))

    def _keys(self, seed: int, step: int) -> list[NoiseKey]:
        return [NoiseKey(seed, step, query) for query in range(self.q)]

    def _mean(self, key: NoiseKey, coefs: Mapping[int, float], loss: float) -> Estimate:
        """Return the estimate of the key's step from the coefficients by query; those of missing queries are NaN."""
        return Estimate.mean(key.seed, key.step, [coefs.get(query, nan) for query in range(self.q)], loss)


@dataclass(frozen=True)
class ClippedDirections(RandomDirections):
    """An estimator whose coefficients are bounded: each g_i to [-C, C], C = `clip` > 0, as QZO does; 0 does not."""

    clip: float = option(0.0, "largest |projected_grad|; 0: any", least=0, added=True, kw_only=True)

    @property
    def bound(self) -> float:
        return self.clip or inf

    def _clipped(self, coefs: Sequence[float]) -> list[float]:
        return [min(max(g, -self.bound), self.bound) for g in coefs]


@dataclass(frozen=True)
class TwoSided(RandomDirections):
    """An estimator whose points are theta + eps z_i and theta - eps z_i."""

    def evaluations(self, d: int) -> int:
        return 2 * self.q

    def points(self, seed: int, step: int) -> tuple[Point, ...]:
        return tuple(Point(key, sign * self.eps) for key in self._keys(seed, step) for sign in (1.0, -1.0))

    def _estimate(self, points: Sequence[Point], coefs: Sequence[float], losses: Sequence[float]) -> Estimate:
        """Build the estimate from the coefficients of the queries that `points` has, in their order."""
        by_query = {point.key.query: g for point, g in zip(points[::2], coefs, strict=True)}
        return self._mean(points[0].key, by_query, sum(losses) / len(losses))
