"""ZO-SGD over the running size of the coefficients: MEAZO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, rounding
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate
from zo_sweeps.methods.update import Params, RoundedUpdate, State


@dataclass(frozen=True)
class MEAZO(RoundedUpdate):
    """Divide the estimate by the running size of its coefficients, one scalar, with bias correction:

        v <- beta v + (1 - beta) g^2
        theta <- theta - lr * (ghat / (sqrt(v / (1 - beta^t)) + eps) + weight_decay * theta)

    g is the mean of the step's coefficients g_i (not of the further ones that an estimator gives), a scalar: so is v,
    for all parameters together. As eps goes to 0, the run does not change if f is multiplied by a number. State:
    {"t": updates done, "v": float}. Cost: q noise passes. Source: MEAZO: Memory-efficient adaptive zeroth-order
    optimization, 2025; beta and eps are ours.
    """

    reads_coefs: ClassVar[bool] = True
    divides_by_mean: ClassVar[bool] = True

    beta: float = option(0.99, "decay of the mean square of the coefficients", least=0, below=1)
    eps: float = option(1e-8, "added to the root", above=0)
    weight_decay: float = option(0.0, "decoupled, of parameters of two or more dimensions", least=0)
    lr: float = option(1e-4, "learning rate of step 1", least=0, kw_only=True)

    def last_moves(self, ghats: Sequence[Tensor], coefs: Sequence[Sequence[float]], lr: float) -> Tensor:
        squares = [(sum(of_step) / len(of_step)) ** 2 for of_step in coefs]
        weights = [self.beta**age for age in range(len(squares))]
        v = sum(weight * square for weight, square in zip(weights, reversed(squares), strict=True)) / sum(weights)
        return -lr * ghats[-1] / (sqrt(v) + self.eps)

    def init(self, params: Params) -> State:
        return {"t": 0, "v": 0.0}

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        present = [estimate.coefs[key.query] for key, _ in estimate.terms]
        t, v = state["t"] + 1, self.beta * state["v"] + (1 - self.beta) * (sum(present) / len(present)) ** 2
        scale = 1 / (sqrt(v / (1 - self.beta**t)) + self.eps)
        rounding.move_all(self, params, estimate, noise, lr, lambda name, ghat: ghat.mul_(scale))
        return {"t": t, "v": v}
