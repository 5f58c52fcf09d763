"""One ZO step. Read this page first.

    points   = estimator.points(seed, step)             where to evaluate f        (ask)
    losses   = evaluate(objective, ..., points, mode)   f at each; the only forwards
    estimate = estimator.combine(points, losses)        a few scalars              (tell)
    state    = method.move(params, estimate, state)     theta moves

The estimate's coefficients are the only record of a step: `replay` reconstructs the weights at any step from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

from torch import nn

from zo_sweeps.engine.direction import Along, bases_of_inputs, digest_of
from zo_sweeps.engine.evaluate import InPlace, RowParts, StepObjective, evaluate
from zo_sweeps.engine.layers.weight_only import Integers
from zo_sweeps.engine.loss_noise import LossNoise
from zo_sweeps.engine.rounding import LostUpdates, probed
from zo_sweeps.engine.types import DivergedError, Peers
from zo_sweeps.methods.estimator import Estimator
from zo_sweeps.methods.evaluation import Evaluation, Mode, Restore
from zo_sweeps.methods.perturbation import ActivationPerturbation, Perturbation
from zo_sweeps.methods.points import Estimate, Layout, NoiseKey, Point, Theta
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.methods.update import Params, State, Update


@dataclass(frozen=True)
class RunState:
    """What a run carries from step to step besides theta: a function of the log, and of nothing else."""

    update: State = field(default_factory=dict)
    directions: State = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A named method (mezo, prge, ...): one member of each axis."""

    estimator: Estimator
    perturbation: Perturbation
    update: Update
    mode: Mode = Mode.SEQUENTIAL
    in_place: InPlace | None = None  # evaluates f in theta itself; None: theta is never written to
    most: int | None = None  # points in one forward; None: as many as the mode says
    d: int = 0  # number of parameters in the space that it is bound to
    base: float | None = None  # f(theta) of the step, where `with_bases` has evaluated it
    mark: float | None = None  # the digest of the step's bases, which its line in the log ends with

    @classmethod
    def of(cls, estimator: Estimator, perturbation: Perturbation, update: Update, evaluation: Evaluation) -> Method:
        """Return the method of these members, evaluated as `evaluation` says."""
        in_place = InPlace() if evaluation.restore is Restore.IN_PLACE else None
        return cls(estimator, perturbation, update, evaluation.mode, in_place, evaluation.points)

    @property
    def evaluations(self) -> int:
        """Points per step at which f is evaluated."""
        points = self.estimator.evaluations(self.d) + self.perturbation.evaluations(self.estimator)
        return points + self.update.evaluations

    def bind(self, params: Params) -> Method:
        """Return the method bound to these parameters: members that need the layout of the whole vector receive it.

        `train` and `replay` do this; callers of `step` must do so once first. Idempotent. Raises ValueError for integer
        codes and members that do not move them by integers.
        """
        if any(isinstance(param, Integers) for param in params.values()):
            for part in (self.perturbation, self.update):
                if Theta.CODES not in part.moves:
                    raise ValueError(f"integer codes do not stay integers under {part.axis} {part.name!r}")
        shapes = {name: param.shape for name, param in params.items()}
        d = sum(shape.numel() for shape in shapes.values())
        estimator = self.estimator.bind(d)
        dtypes = {name: param.dtype for name, param in params.items()}
        layout = Layout(shapes, estimator.directions(d), dtypes, estimator.reach)
        return replace(self, estimator=estimator, perturbation=self.perturbation.bind(layout), d=d)

    def init(self, params: Params) -> RunState:
        """Return the state before the first step, of a method that is bound to these parameters."""
        return RunState(self.update.init(params), self.perturbation.init(params))

    def begin(self, space: InstalledSpace, step: int, state: RunState) -> tuple[Method, RunState]:
        """Return the method and the state with which a step begins: bound anew, and the first, if the space changes."""
        if not space.changes_at(step):
            return self, state
        space.begin(step)
        method = self.bind(space.params)
        return method, method.init(space.params)

    def at(self, params: Params, state: RunState, step: int) -> Method:
        """Return the method with the directions of a step that begins at these parameters and this state."""
        return replace(self, perturbation=self.perturbation.at(params, state.directions, step))

    def move(self, params: Params, estimate: Estimate, state: RunState, lr: float) -> RunState:
        """Move theta by a step's estimate, as the method `at` that step; return the state after it."""
        update = self.update.apply(params, estimate, self.perturbation.stepped(), state.update, lr)
        return RunState(update, self.perturbation.observe(params, estimate, state.directions))


def step(
    method: Method,
    module: nn.Module,
    space: InstalledSpace,
    objective: StepObjective,
    state: RunState,
    *,
    seed: int,
    step: int,
    lr: float,
    peers: Peers | None = None,
    lost: LostUpdates | None = None,
    noise: LossNoise | None = None,
) -> tuple[Estimate, RunState]:
    """Take one step of theta; return the estimate (for the log) and the new state.

    Args:
        objective: P -> [P] losses of the step's minibatch at the P points that the space holds; one for each direction
            if the estimator's directions own their rows.
        seed, step: noise address of the step's directions.
        peers: the processes that share the step's points; None: this process evaluates all of them.
        lost: measures the share of the update that rounding loses.
        noise: evaluates the step's points in place of `objective`, and measures their rounding noise.

    Raises DivergedError if a loss is not finite; theta then still has its value from the previous step.
    """
    method = method.at(space.params, state, step)
    method = with_bases(method, module, space, noise or objective, seed, step)
    points: Sequence[Point] = method.estimator.points(seed, step)
    f = partial(losses_at, method, module, space, noise or objective)
    if peers is None:
        losses = f(points)
    elif isinstance(objective, RowParts):
        losses = objective.of_divided(peers.losses(objective.divide(points), f)[1])
    else:
        points, losses = peers.losses(points, f)
    for point, loss in zip(points, losses, strict=True):
        if not math.isfinite(loss):
            shown = ", ".join(f"{value:.6g}" for value in losses)
            query = point.key.query
            raise DivergedError(f"non-finite loss at step {step}, seed {seed}, query {query}: losses [{shown}]")
    estimate = method.estimator.combine(points, losses)
    line = Along(estimate, method.perturbation)

    def along(scales: Sequence[float]) -> list[float]:
        if not callable(objective):
            raise ValueError(f"update {method.update.name!r} needs one f for all points of a step")
        candidates = [Point(points[0].key, scale) for scale in scales]
        mode = method.mode if space.batched else Mode.SEQUENTIAL  # a sum of directions has no thin factors
        return evaluate(objective, module, space, line, candidates, mode, method.most)

    estimate = method.update.choose(estimate, lr, along)
    estimated = partial(probed, estimate, method.perturbation.stepped())
    with lost.around(space.params, estimated) if lost is not None else nullcontext():
        state = method.move(space.params, estimate, state, lr)
    return estimate if method.mark is None else replace(estimate, coefs=(*estimate.coefs, method.mark)), state


def with_bases(
    method: Method, module: nn.Module, space: InstalledSpace, objective: StepObjective, seed: int, step: int
) -> Method:
    """Return the method `at` a step with the bases of its minibatch; itself, if its directions do not read data.

    Cost: the forward at theta, and what a basis takes of each matrix.
    """
    noise = method.perturbation
    if not isinstance(noise, ActivationPerturbation):
        return method
    theta = Point(NoiseKey(seed, step, 0), 0.0)
    with bases_of_inputs(module, space.params, noise, theta.key) as bases:
        (base,) = losses_at(method, module, space, objective, [theta])
    return replace(method, perturbation=replace(noise, bases=bases), base=base, mark=digest_of(bases))


def losses_at(
    method: Method, module: nn.Module, space: InstalledSpace, objective: StepObjective, points: Sequence[Point]
) -> list[float]:
    """Return f at each of a step's points, which are in the order of their queries; on its own rows, if it has some."""
    if method.base is not None:
        others = [point for point in points if point.scale]
        moved = iter(losses_at(replace(method, base=None), module, space, objective, others))
        return [next(moved) if point.scale else method.base for point in points]
    if isinstance(objective, RowParts) and points[0].part is not None:
        losses: dict[Point, float] = {}
        for part, f in enumerate(objective.parts):
            own = [point for point in points if point.part == part]
            at = [replace(point, part=None) for point in own]
            losses |= zip(own, losses_at(method, module, space, f, at), strict=True)
        return [losses[point] for point in points]
    if not callable(objective):
        by_query = groupby(points, lambda point: point.key.query)
        parts = [losses_at(method, module, space, objective[query], [*own]) for query, own in by_query]
        return [loss for part in parts for loss in part]
    if method.in_place is not None:
        return method.in_place.losses(objective, space.params, method.perturbation, points)
    return evaluate(objective, module, space, method.perturbation, points, method.mode, method.most)
