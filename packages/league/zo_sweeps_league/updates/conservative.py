"""Conservative ZO-SGD: never takes a step that increases the loss on its own minibatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from zo_sweeps.engine.later import rounding
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate
from zo_sweeps.methods.update import Params, RoundedUpdate, State


@dataclass(frozen=True)
class Conservative(RoundedUpdate):
    """theta <- whichever of theta - lr ghat, theta, theta + lr ghat has the lowest loss on the step's minibatch.

    Ties go to the first in this order. The decision s in {1, 0, -1} multiplies the estimate and its logged g_i (not the
    further numbers that an estimator gives), so that the log holds the step actually taken, and a replay needs no
    forwards. A candidate with a non-finite loss is not taken; it does not end the run.

    Cost: three more points per step (one more forward in the batched modes), q noise passes each, and q for the update.
    No state, and no weight decay: it would move theta to a point without a measured loss. Source: ZO-Bench (Zhang et
    al., 2024), ZO-SGD-Cons, with the decision rule of its released code.
    """

    evaluations: ClassVar[int] = 3
    reads_coefs: ClassVar[bool] = True

    def choose(self, estimate: Estimate, lr: float, along: Callable[[Sequence[float]], list[float]]) -> Estimate:
        ahead, here, behind = (loss if loss == loss else float("inf") for loss in along((-lr, 0.0, lr)))
        decision = 1.0 if ahead <= min(here, behind) else 0.0 if here <= behind else -1.0
        terms = tuple((key, decision * weight) for key, weight in estimate.terms)
        own = {key.query for key, _ in terms}
        coefs = tuple(decision * g if query in own else g for query, g in enumerate(estimate.coefs))
        return replace(estimate, terms=terms, coefs=coefs)

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        if any(weight for _, weight in estimate.terms):
            rounding.move_all(self, params, estimate, noise, lr)
        return state
