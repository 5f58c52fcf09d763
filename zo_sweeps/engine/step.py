"""One ZO step. Read this page first.

    points   = estimator.points(seed, step)             where f is wanted          (ask)
    losses   = evaluate(objective, ..., points, mode)   f there; the only forwards
    estimate = estimator.combine(points, losses)        a few scalars              (tell)
    state    = update.apply(params, estimate, ...)      theta moves

The estimate's coefficients are all that a step leaves behind: `replay` makes the weights of any step from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from zo_sweeps.engine.direction import Along
from zo_sweeps.engine.evaluate import Objective, evaluate
from zo_sweeps.engine.in_place import InPlace
from zo_sweeps.engine.types import Choosing, DivergedError, Peers
from zo_sweeps.methods.estimator import Estimator
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate, Layout, Point
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.methods.update import Params, State, Update


@dataclass(frozen=True)
class Method:
    """A named method (mezo, prge, ...) as the choice on each axis."""

    estimator: Estimator
    perturbation: Perturbation
    update: Update
    mode: Mode = Mode.SEQUENTIAL
    in_place: InPlace | None = None  # f is evaluated in theta itself; None: never written to
    d: int = 0  # parameters of the space that it is bound to

    @property
    def evaluations(self) -> int:
        """Points per step at which f is evaluated."""
        return self.estimator.evaluations(self.d) + self.update.evaluations

    def bind(self, params: Params) -> Method:
        """The method over these parameters: members that need the whole vector's layout are given it.

        `train` and `replay` do this; who calls `step` alone does it once before. Binding again changes nothing.
        """
        shapes = {name: param.shape for name, param in params.items()}
        d = sum(shape.numel() for shape in shapes.values())
        estimator = self.estimator.bind(d)
        layout = Layout(shapes, estimator.directions(d))
        return replace(self, estimator=estimator, perturbation=self.perturbation.bind(layout), d=d)


def step(
    method: Method,
    module: nn.Module,
    space: InstalledSpace,
    objective: Objective,
    state: State,
    *,
    seed: int,
    step: int,
    lr: float,
    peers: Peers | None = None,
) -> tuple[Estimate, State]:
    """One step of theta; returns the estimate (for the log) and the update's new state.

    Args:
        objective: P -> [P] losses of the step's minibatch at the points that the space then holds.
        seed, step: address of the step's directions.
        lr: learning rate of this step.
        peers: the others that evaluate f at some of the points, if there are any.

    Raises DivergedError when a loss is not finite; theta is then still that of the step before.
    """
    points: Sequence[Point] = method.estimator.points(seed, step)
    f = partial(losses_at, method, module, space, objective)
    if peers is None:
        losses = f(points)
    else:
        points, losses = peers.losses(points, f)
    for point, loss in zip(points, losses, strict=True):
        if not math.isfinite(loss):
            shown = ", ".join(f"{value:.6g}" for value in losses)
            query = point.key.query
            raise DivergedError(f"non-finite loss at step {step}, seed {seed}, query {query}: losses [{shown}]")
    estimate = method.estimator.combine(points, losses)
    if isinstance(method.update, Choosing):
        line = Along(estimate, method.perturbation)

        def along(scales: Sequence[float]) -> list[float]:
            places = [Point(points[0].key, scale) for scale in scales]
            return evaluate(objective, module, space, line, places, method.mode)

        estimate = method.update.choose(estimate, lr, along)
    return estimate, method.update.apply(space.params, estimate, method.perturbation, state, lr)


def losses_at(
    method: Method, module: nn.Module, space: InstalledSpace, objective: Objective, points: Sequence[Point]
) -> list[float]:
    """f at each of a step's points."""
    if method.in_place is not None:
        return method.in_place.losses(objective, space.params, method.perturbation, points)
    return evaluate(objective, module, space, method.perturbation, points, method.mode)
