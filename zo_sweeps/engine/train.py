"""A training run: steps and evaluations, yielded as events. Writes no files and prints nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from zo_sweeps.engine.batch import Batch, BatchParts
from zo_sweeps.engine.below import Below
from zo_sweeps.engine.evaluate import Objective, RowParts, StepObjective
from zo_sweeps.engine.loss_noise import LossNoise
from zo_sweeps.engine.losses import Loss, token_logprobs
from zo_sweeps.engine.replay import Data, rebuild
from zo_sweeps.engine.rounding import LostUpdates
from zo_sweeps.engine.step import Method, step
from zo_sweeps.engine.types import DivergedError, LanguageModel, Peers
from zo_sweeps.methods.schedule import Rates
from zo_sweeps.methods.space import InstalledSpace


@dataclass(frozen=True)
class StepDone:
    """The event after each step."""

    step: int
    loss: float  # mean over the step's points
    coefs: tuple[float, ...]  # empty for first-order steps
    seconds: float
    tokens: int  # forwarded, padding included
    lost: float = math.nan  # share of the update that rounding lost; NaN: not measured
    joules: float = math.nan  # NaN: not measured
    skipped: bool = False  # a first-order step whose scaled gradients were not all finite
    noise: tuple[float, float] | None = None  # rounding noise of the losses, and their spread; None: not measured


@dataclass(frozen=True)
class Scores:
    """How a split is scored with the weights as they are."""

    loss: float  # f of the whole split as one batch (see `zo_sweeps.methods.objective`)
    metric: float  # the task's first, which can select the step
    metrics: Mapping[str, float]  # all of them, by name
    right: Sequence[bool] = ()  # whether each example's prediction is right; () where numbers are predicted
    leads: Sequence[float] = ()  # by how much each example's best candidate leads the next; () where none are compared


@dataclass(frozen=True)
class Evaluated:
    """The event after each evaluation on the dev split."""

    step: int
    loss: float
    metric: float
    metrics: Mapping[str, float]
    seconds: float


def no_joules() -> float:
    """Return NaN: the counter of joules where there is none."""
    return math.nan


def evaluation_points(steps: int, every: int) -> list[int]:
    """Return the steps after which to evaluate: the multiples of `every`, and the last step."""
    return sorted({*range(every, steps + 1, every), steps}) if steps else []


def train(
    method: Method,
    model: LanguageModel,
    space: InstalledSpace,
    batches: Callable[[int], Batch | BatchParts],
    loss: Loss,
    rates: Rates,
    evaluate_dev: Callable[[], Scores],
    *,
    seed: int,
    steps: int,
    eval_every: int,
    log: Sequence[Sequence[float]] = (),
    evaluated: Collection[int] = (),
    objective: Callable[[int, int], Tensor] | None = None,
    peers: Peers | None = None,
    joules: Callable[[], float] = no_joules,
) -> Iterator[StepDone | Evaluated]:
    """Run steps len(log)+1 .. steps, after replaying `log` onto the space's base values.

    Args:
        batches: number of a minibatch -> it, on the model's device; see `Estimator.minibatches`.
        log: coefficients of the completed steps.
        evaluated: steps after which the dev split has been scored: not again.
        objective: (step number, P) -> [P]; replaces `loss` of the step's batch where f is not a function of the answer
            tokens' log-probabilities (the F1 of generated text).
        peers: as in `step`.
        joules: a counter that grows, read before and after every step, outside of its seconds; NaN: none.

    Raises DivergedError at the first non-finite loss, and ValueError for peers with in-place evaluation, because theta
    would depend on which process evaluated which points.
    """
    if peers is not None:
        if method.in_place is not None:
            raise ValueError("peers need out-of-place evaluation: set evaluation.restore=exact")
        for coefs in log:
            peers.tell(coefs)
    data = Data(model.module, space, lambda number: of_batch(model, batches(number), loss, space))
    state = rebuild(method, space, log, rates, seed=seed, data=data)
    method = method.bind(space.params)
    due = set(evaluation_points(steps, eval_every)) - set(evaluated)
    if len(log) in due:
        yield evaluated_at(len(log), evaluate_dev, seed)
    for number in range(len(log) + 1, steps + 1):
        spent, began = joules(), time.perf_counter()
        method, state = method.begin(space, number, state)
        own = [batches(place) for place in method.estimator.minibatches(number)]
        each = [of_batch(model, batch, loss, space) for batch in own]
        f: StepObjective = each if method.estimator.owns_rows else each[0]
        if objective is not None:
            f = partial(objective, number)
        noise, divided = None, peers is not None and isinstance(f, RowParts)  # then none has a point's whole loss
        # An attempt's first operations may be counted. The score of a generated text is a count, and has no rounding.
        due_noise = number > len(log) + 1 and LossNoise.is_measured(number) and not divided
        if callable(f) and objective is None and due_noise:
            noise = LossNoise(f, of_batch(model, own[0], loss, space), model.module, joules)
        measured = LostUpdates.is_measured(number) and not method.update.rounds_randomly
        lr, lost = rates(number), LostUpdates() if measured else None
        estimate, state = step(
            method, model.module, space, f, state, seed=seed, step=number, lr=lr, peers=peers, lost=lost, noise=noise
        )
        if peers is not None:
            peers.tell(estimate.coefs)
        tokens = sum(batch.tokens for batch in own) * method.evaluations // len(own)
        share = math.nan if lost is None else lost.share(lr != 0 and any(weight for _, weight in estimate.terms))
        seconds, spent = time.perf_counter() - began, joules() - spent
        rounding = None
        if noise is not None:
            seconds, spent, rounding = seconds - noise.seconds, spent - noise.joules, noise.result
        yield StepDone(number, estimate.loss, estimate.coefs, seconds, tokens, share, spent, noise=rounding)
        if number in due:
            yield evaluated_at(number, evaluate_dev, seed)


def of_batch(model: LanguageModel, batch: Batch | BatchParts, loss: Loss, space: InstalledSpace) -> Objective:
    """Return f: number of row groups P -> `loss` of the batch in each, [P], at points of a space; see `Below`."""
    if isinstance(batch, BatchParts):
        return RowParts([of_batch(model, part, loss, space) for part in batch.batches], batch.terms)
    below = Below(model, space, batch)

    def f(points: int) -> Tensor:
        with below.shared(points):
            return loss(token_logprobs(model, batch, copies=points), batch)

    return f


def evaluated_at(number: int, evaluate_dev: Callable[[], Scores], seed: int) -> Evaluated:
    """Score theta on the dev split after a step. Raises DivergedError if a score is not finite."""
    began = time.perf_counter()
    dev = evaluate_dev()
    if not (math.isfinite(dev.loss) and math.isfinite(dev.metric)):
        raise DivergedError(f"non-finite dev loss at step {number}, seed {seed}: {dev.loss}")
    return Evaluated(number, dev.loss, dev.metric, dev.metrics, time.perf_counter() - began)
