"""ZO-Adam whose moments are summed anew from the last few estimates: AdaMeZO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, direction, rounding
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate
from zo_sweeps.methods.update import Params, RoundedUpdate, State


@dataclass(frozen=True)
class AdaMeZO(RoundedUpdate):
    """theta <- theta - lr * (boost m / (sqrt(v) + eps) + weight_decay * theta), over the last h = `horizon` estimates:

        m = sum_{k < h} beta1^k ghat_{t-k},  v = sum_{k < h} beta2^k ghat_{t-k}^2

    The first h - 1 steps, before there are h estimates, are SGD's: theta - lr * ghat; in the release (4412153) h + 1
    steps are, and all of them with h = 1. No factors 1 - beta and no bias correction, as released. State: the terms of
    h estimates, scalars: no memory per parameter. Cost: h q noise passes. Source: AdaMeZO: Adam-style zeroth-order
    optimizer for LLM fine-tuning without maintaining the moments, 2025.
    """

    numerics: ClassVar[int] = 2
    draws_again: ClassVar[bool] = True

    horizon: int = option(10, "estimates that the moments are summed over", least=1)
    beta1: float = option(0.7, "weight of an estimate against the one after it, in m", least=0, most=1)
    beta2: float = option(0.9, "the same in v", least=0, most=1)
    eps: float = option(1e-5, "added to the root", above=0)
    boost: float = option(100.0, "factor of the adaptive step", above=0)
    weight_decay: float = option(0.0, "decoupled, of parameters of two or more dimensions", least=0)
    lr: float = option(1e-7, "learning rate of step 1", least=0, kw_only=True)

    def last_move(self, ghats: Sequence[float], lr: float) -> float:
        if len(ghats) < self.horizon:
            return -lr * ghats[-1]
        latest = ghats[: -self.horizon - 1 : -1]
        m = sum(self.beta1**k * g for k, g in enumerate(latest))
        v = sum(self.beta2**k * g * g for k, g in enumerate(latest))
        return -lr * self.boost * m / (sqrt(v) + self.eps)

    def init(self, params: Params) -> State:
        return {"latest": ()}

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        latest: tuple[Estimate, ...] = (estimate, *state["latest"])[: self.horizon]

        def step(name: str, m: Tensor) -> Tensor:
            if len(latest) < self.horizon:
                return m
            v = m.square()
            for age, old in enumerate(latest[1:], start=1):
                g = direction.ghat(old, noise, name, params[name])
                m.add_(g, alpha=self.beta1**age)
                rounding.add_square(v, g, self.beta2**age)
            return m.div_(rounding.root(v).add_(self.eps)).mul_(self.boost)

        rounding.move_all(self, params, estimate, noise, lr, step)
        return {"latest": latest}
