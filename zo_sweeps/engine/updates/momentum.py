"""ZO-SGD with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, direction, rounding
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate
from zo_sweeps.methods.update import Params, RoundedUpdate, State


@dataclass(frozen=True)
class Momentum(RoundedUpdate):
    """m <- momentum * m + ghat;  theta <- theta - lr * (m + weight_decay * theta).

    Args:
        momentum: without dampening: under a constant ghat, theta moves by lr / (1 - mu) * ghat per step.
        per_query: whether m takes in the queries one by one and theta moves by m after each, q times per step, as in
            LOREN's released code (b80a32b): the first queries count more than the last. Parameters of one dimension
            then have no momentum.

    State: {"m": {name: fp32}}, 4 bytes per trainable value. Cost: q noise passes; `per_query`: 2q. Source: ZO-SGD-MMT
    of ZO-Bench (Zhang et al., 2024), with its default 0.9.
    """

    state_copies: ClassVar[int] = 1

    momentum: float = option(0.9, "mu of heavy-ball momentum", least=0)
    weight_decay: float = option(0.0, "decoupled, of parameters of two or more dimensions", least=0)
    per_query: bool = option(
        False, "m moves theta after each query, in matrices alone, as LOREN's release", added=True, kw_only=True
    )

    def last_move(self, ghats: Sequence[float], lr: float) -> float:
        return -lr * sum(self.momentum**age * g for age, g in enumerate(reversed(ghats)))

    def init(self, params: Params) -> State:
        return {"m": rounding.zeros(params)}

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        def step(name: str, whole: Tensor) -> Tensor:
            m: Tensor = state["m"][name]
            if not self.per_query:
                return m.mul_(self.momentum).add_(whole)
            if m.dim() < 2:
                return whole
            total = whole.zero_()
            for term in estimate.terms:
                m.mul_(self.momentum).add_(direction.ghat(replace(estimate, terms=(term,)), noise, name, params[name]))
                total.add_(m)
            return total

        rounding.move_all(self, params, estimate, noise, lr, step)
        return state
