"""The axis `estimator`: the points at which f is evaluated, and the gradient estimate from their losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.definition import Definition
from zo_sweeps.methods.points import Estimate, Point


@dataclass(frozen=True)
class Estimator(Definition):
    """A gradient estimator: `points` declares a step's points, `combine` turns their losses into ghat."""

    axis: ClassVar[str] = "estimator"
    curvature: ClassVar[float | None] = 0.0  # c of g_i = z_i . grad f + c eps z_i H z_i on a quadratic f; None: neither
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

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        """Combine losses into an estimate; queries missing from `points` (see engine/peers.py) get NaN."""
        raise NotImplementedError

    def on_linear(self, slopes: Sequence[float]) -> Sequence[float]:
        """Return the coefficients g_i on a linear f with slopes z_i . grad f along the directions of a step.

        An estimate of the gradient has the slopes themselves. A member that means something else says here what.
        """
        return slopes

    def from_log(self, seed: int, step: int, coefs: Sequence[float]) -> Estimate:
        """Return a past step's estimate from its logged coefficients. Raises ValueError if their number is wrong."""
        raise NotImplementedError
