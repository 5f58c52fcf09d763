"""One ZO step. Read this page first.

    points   = estimator.points(seed, step)             where f is wanted          (ask)
    losses   = evaluate(objective, ..., points, mode)   f there; the only forwards
    estimate = estimator.combine(points, losses)        a few scalars              (tell)
    state    = update.apply(params, estimate, ...)      theta moves

The estimate's coefficients are all that a step leaves behind: `replay` makes the weights of any step from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from zo_sweeps.engine.evaluate import Mode, Objective, evaluate
from zo_sweeps.engine.types import DivergedError, Estimate, Estimator, Perturbation, Space, State, Update


@dataclass(frozen=True)
class Method:
    """A named method (mezo, prge, ...) as the choice on each axis."""

    estimator: Estimator
    perturbation: Perturbation
    update: Update
    mode: Mode = "sequential"


def step(
    method: Method,
    module: nn.Module,
    space: Space,
    objective: Objective,
    state: State,
    *,
    seed: int,
    step: int,
    lr: float,
) -> tuple[Estimate, State]:
    """One step of theta; returns the estimate (for the log) and the update's new state.

    Args:
        objective: P -> [P] losses of the step's minibatch at the points that the space then holds.
        seed, step: address of the step's directions.
        lr: learning rate of this step.

    Raises DivergedError when a loss is not finite; theta is then still that of the step before.
    """
    points = method.estimator.points(seed, step)
    losses = evaluate(objective, module, space, method.perturbation, points, method.mode)
    for point, loss in zip(points, losses, strict=True):
        if not math.isfinite(loss):
            shown = ", ".join(f"{value:.6g}" for value in losses)
            query = point.key.query
            raise DivergedError(f"non-finite loss at step {step}, seed {seed}, query {query}: losses [{shown}]")
    estimate = method.estimator.combine(points, losses)
    return estimate, method.update.apply(space.params, estimate, method.perturbation, state, lr)
