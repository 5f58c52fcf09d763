"""Momentum over a clipped diagonal Hessian, with annealing: HELENE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, rounding, torch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate
from zo_sweeps.methods.update import Params, RoundedUpdate, State


@dataclass(frozen=True)
class HELENE(RoundedUpdate):
    """m <- beta1 m + a_t ghat, a_t = beta1 + (1 - beta1) exp(-t / annealing);  h <- beta2 h + (1 - beta2) ghat^2;

        theta <- theta - lr * (m / (gamma max(h, floor) + eps) + weight_decay * theta)

    h changes in steps 1, 1 + every, 1 + 2 every, .... The paper has a floor for each layer.

    ghat^2, with the true labels, is the Gauss-Newton-Bartlett diagonal but for its factor B (the batch), which gamma
    has. State: {"t": updates done, "m": {name: fp32}, "h": {name: fp32}}, 8 bytes per trainable value. Cost: q noise
    passes. Source: Zhao et al., HELENE: Hessian layer-wise clipping and gradient annealing for accelerating fine-tuning
    LLM with zeroth-order optimization, 2024; no release is at hand, and every default but the betas is ours.
    """

    numerics: ClassVar[int] = 2
    state_copies: ClassVar[int] = 2

    beta1: float = option(0.9, "decay of m", least=0, most=1)
    beta2: float = option(0.99, "decay of h", least=0, most=1)
    annealing: float = option(1000.0, "steps in which a new estimate's weight falls", above=0)
    every: int = option(10, "steps between changes of h", least=1)
    gamma: float = option(1.0, "factor of the Hessian", above=0)
    floor: float = option(1.0, "smallest value of h", least=0)
    eps: float = option(1e-8, "added to the denominator", above=0)
    weight_decay: float = option(0.0, "decoupled, of parameters of two or more dimensions", least=0)

    def last_move(self, ghats: Sequence[float], lr: float) -> float:
        m = h = 0.0
        for t, g in enumerate(ghats, start=1):
            m = self.beta1 * m + self._weight(t) * g
            h = self.beta2 * h + (1 - self.beta2) * g * g if t % self.every == 1 or self.every == 1 else h
        return -lr * m / (self.gamma * max(h, self.floor) + self.eps)

    def _weight(self, t: int) -> float:
        return self.beta1 + (1 - self.beta1) * exp(-t / self.annealing)

    def init(self, params: Params) -> State:
        return {"t": 0, "m": rounding.zeros(params), "h": rounding.zeros(params)}

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        t = state["t"] + 1

        def step(name: str, ghat: Tensor) -> Tensor:
            m = state["m"][name].mul_(self.beta1).add_(ghat, alpha=self._weight(t))
            h: Tensor = state["h"][name]
            if state["t"] % self.every == 0:
                rounding.add_square(h.mul_(self.beta2), ghat, 1 - self.beta2)
            return torch.div(m, h.clamp(min=self.floor).mul_(self.gamma).add_(self.eps), out=ghat)

        rounding.move_all(self, params, estimate, noise, lr, step)
        return {**state, "t": t}
