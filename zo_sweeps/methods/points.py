"""The data of one ZO step: noise keys, points and estimates. None of it is a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


# Rows of each point in the forwards of a generation, whose finished rows have left; None: of one forward, equal groups.
rows_of_points: ContextVar[tuple[int, ...] | None] = ContextVar("rows_of_points", default=None)


class Theta(Enum):
    """The values that a space trains, perturbations and updates move, and a precision stores."""

    FLOATS = "floating-point numbers"
    SCALES = "the scales of weights stored as codes"
    CODES = "integer codes"


REALS = frozenset({Theta.FLOATS, Theta.SCALES})


class NoiseKey(NamedTuple):
    """Address of one direction z; with a parameter's name and an element's index, of one random number."""

    seed: int
    step: int
    query: int


@dataclass(frozen=True)
class Layout:
    """The vector of all d parameters, and what a step draws over it: how many directions, and how far it goes.

    Args:
        shapes: each parameter's shape, in the space's order.
        q: directions per step.
        dtypes: each parameter's dtype; fp32 where it is not named.
        eps: the largest |scale| of a step's points theta + scale * z.
    """

    shapes: Mapping[str, torch.Size]
    q: int
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    eps: float = 1.0

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Offset of each parameter's first element."""
        offsets, end = {}, 0
        for name, shape in self.shapes.items():
            offsets[name] = end
            end += shape.numel()
        return offsets

    @cached_property
    def d(self) -> int:
        return sum(shape.numel() for shape in self.shapes.values())

    def drawn_before(self, key: NoiseKey) -> int:
        """Count the directions that the run draws before this one; steps count from 1, a step's queries from 0."""
        return (key.step - 1) * self.q + key.query


@dataclass(frozen=True)
class Point:
    """A point at which f is evaluated: theta + scale * z(key). `scale` is +eps or -eps; 0 is theta itself.

    `part` is the part of the minibatch's rows that it owns (see `Evaluation.parts`); None: all of them.
    """

    key: NoiseKey
    scale: float
    part: int | None = None


@dataclass(frozen=True)
class Estimate:
    """ghat = sum_i weight_i * z(key_i), and the scalars it came from.

    Args:
        terms: (key_i, weight_i) for the update; weight_i holds the 1/q of the mean.
        coefs: the logged numbers, one per query (projected_grad for RGE); NaN: dropped from the step.
        loss: the train loss of the step: mean of the points' losses, or f(theta) if theta is one of the points.
    """

    terms: tuple[tuple[NoiseKey, float], ...]
    coefs: tuple[float, ...]
    loss: float

    @classmethod
    def mean(cls, seed: int, step: int, coefs: Sequence[float], loss: float) -> Estimate:
        """Return ghat = (1/k) sum_i g_i z_i over the k queries of a step whose coefficient g_i is not NaN."""
        present = [(NoiseKey(seed, step, query), g) for query, g in enumerate(coefs) if not math.isnan(g)]
        return cls(tuple((key, g / len(present)) for key, g in present), tuple(coefs), loss)
