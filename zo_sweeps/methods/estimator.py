"""The axis `estimator`: at which points f is evaluated, and what gradient the losses make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.definition import Definition
from zo_sweeps.methods.points import Estimate, Point


@dataclass(frozen=True)
class Estimator(Definition):
    """Ask, then tell: which points a step needs, and what gradient their losses make."""

    axis: ClassVar[str] = "estimator"
    coordinates: ClassVar[bool] = False  # goes through the coordinates one by one, as its perturbation must

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
        """Return the estimator for a space of d parameters; itself, where d does not matter."""
        return self

    def points(self, seed: int, step: int) -> tuple[Point, ...]:
        """Declare all points of a step."""
        raise NotImplementedError

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        """Combine losses into an estimate; queries missing from `points` (see engine/peers.py) get NaN."""
        raise NotImplementedError

    def from_log(self, seed: int, step: int, coefs: Sequence[float]) -> Estimate:
        """Return the estimate of a step that was already run, from its logged coefficients alone."""
        raise NotImplementedError
