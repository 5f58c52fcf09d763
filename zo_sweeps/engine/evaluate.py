"""Evaluation of f at theta + scale * z: one point at a time, or several in one forward. Theta is never modified.

theta is not written to, so it cannot drift: each layer computes a point's values from theta and the addressed noise
(out of place), uses them, and discards them. Modes, with forwards per step for q two-sided queries:

    sequential  2q  one point per forward; memory of the largest layer
    outer       2   P-RGE's outer loop: the q plus points, then the q minus points
    inner       q   P-RGE's inner loop: both signs of a query
    both        1   all 2q points in one forward

The full space holds several points if the directions of its matrices are products of thin factors (factored.py).

For one-sided queries theta itself replaces the minus points: q + 1 forwards in `sequential`; theta has a forward of its
own in `outer`, and shares the first query's in `inner`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from zo_sweeps.core.memory_parts import Part, counted_as
from zo_sweeps.engine.direction import combine
from zo_sweeps.engine.factored import factored
from zo_sweeps.engine.out_of_place import out_of_place
from zo_sweeps.engine.types import Partial
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.perturbation import FactoredPerturbation, Perturbation
from zo_sweeps.methods.points import Point
from zo_sweeps.methods.space import InstalledSpace

Objective = Callable[[int], Tensor]  # number of row groups P -> losses [P]
StepObjective = Objective | Sequence[Objective]  # of all points, or of each query's own


def evaluate(
    objective: Objective,
    module: nn.Module,
    space: InstalledSpace,
    noise: Perturbation,
    points: Sequence[Point],
    mode: Mode,
    most: int | None = None,
) -> list[float]:
    """Return f at each point, in the order of `points`. The grouping into forwards changes it by rounding only.

    Args:
        most: points in one forward; None: as many as the mode says.

    Raises ValueError for a batched mode over a space that holds only one point per forward.
    """
    if mode.batched and not (space.batched or isinstance(noise, FactoredPerturbation)):
        what = f"mode {mode.value!r} needs a space that holds several points, or directions in factors"
        raise ValueError(f"{what}; use mode 'sequential'")
    losses: list[float] = [0.0] * len(points)
    for group in mode.groups(points, most):
        chosen = [points[i] for i in group]
        with torch.inference_mode(), _held(module, space, noise, chosen, mode):
            values = objective(len(chosen)).tolist()
        for i, value in zip(group, values, strict=True):
            losses[i] = value
    return losses


def _held(
    module: nn.Module, space: InstalledSpace, noise: Perturbation, points: Sequence[Point], mode: Mode
) -> AbstractContextManager[None]:
    """Return the block within which the model computes at the points."""
    if space.batched:
        return _stacked(module, space, noise, points)
    if mode.batched and isinstance(noise, FactoredPerturbation):
        return factored(module, space, noise, points)
    return out_of_place(module, space, noise, points)


@contextmanager
def _stacked(module: nn.Module, space: InstalledSpace, noise: Perturbation, points: Sequence[Point]) -> Iterator[None]:
    """Hold P copies of each trainable tensor, [P, *shape], in the space: small, because a batched space is small."""
    with counted_as(Part.TRAINABLE):
        space.hold({name: _at(points, noise, name, param) for name, param in space.params.items()})
    try:
        yield
    finally:
        space.hold({})


def _at(points: Sequence[Point], noise: Perturbation, name: str, param: Tensor) -> Tensor:
    """Return a parameter at P points, [P, *shape]."""
    stacked = param.detach().expand(len(points), *param.shape).clone()
    if isinstance(noise, Partial):  # drawing a direction twice costs less than storing it
        for i, point in enumerate(points):
            combine(noise, [(point.key, point.scale)], name, stacked[i], out=stacked[i])
        return stacked
    directions: dict[object, Tensor] = {}  # both signs of a query use the same direction
    for i, point in enumerate(points):
        if point.scale == 0:
            continue
        if point.key not in directions:
            directions[point.key] = noise.sample(point.key, name, param.shape, param.device)
        stacked[i].add_(directions[point.key], alpha=point.scale)
    return stacked
