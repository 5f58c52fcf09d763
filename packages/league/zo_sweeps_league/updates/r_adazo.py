"""ZO-Adam whose second moment is of the first: R-AdaZO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, rounding, torch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate
from zo_sweeps.methods.update import Params, RoundedUpdate, State


@dataclass(frozen=True)
class RAdaZO(RoundedUpdate):
    """m <- beta1 m + (1 - beta1) ghat;  v <- beta2 v + (1 - beta2) m^2;  both without bias correction:

        theta <- theta - lr * (m / sqrt(v + eps) + weight_decay * theta)

    State: {"m": {name: fp32}, "v": {name: fp32}}, 8 bytes per trainable value. Cost: q noise passes. Source: Shu et
    al., Refining adaptive zeroth-order optimization at ease (R-AdaZO), 2025. The release (f7c9377) perturbs one tensor
    at a time, with 2 K forwards for each of them; here as elsewhere all move together.
    """

    numerics: ClassVar[int] = 2
    state_copies: ClassVar[int] = 2

    beta1: float = option(0.9, "decay of the mean of estimates", least=0, most=1)
    beta2: float = option(0.99, "decay of the mean of its squares", least=0, most=1)
    eps: float = option(1e-8, "added to v", above=0)
    weight_decay: float = option(0.0, "decoupled, of parameters of two or more dimensions", least=0)
    lr: float = option(1e-4, "learning rate of step 1", least=0, kw_only=True)

    def last_move(self, ghats: Sequence[float], lr: float) -> float:
        m = v = 0.0
        for g in ghats:
            m = self.beta1 * m + (1 - self.beta1) * g
            v = self.beta2 * v + (1 - self.beta2) * m * m
        return -lr * m / sqrt(v + self.eps)

    def init(self, params: Params) -> State:
        return {"m": rounding.zeros(params), "v": rounding.zeros(params)}

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        def step(name: str, ghat: Tensor) -> Tensor:
            m = state["m"][name].mul_(self.beta1).add_(ghat, alpha=1 - self.beta1)
            v = rounding.add_square(state["v"][name].mul_(self.beta2), ghat.copy_(m), 1 - self.beta2)
            return torch.div(m, rounding.root(v + self.eps), out=ghat)

        rounding.move_all(self, params, estimate, noise, lr, step)
        return state
