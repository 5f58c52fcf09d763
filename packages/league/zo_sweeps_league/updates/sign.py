"""ZO-sign-SGD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zo_sweeps.engine.later import rounding
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate
from zo_sweeps.methods.update import Params, RoundedUpdate, State


@dataclass(frozen=True)
class Sign(RoundedUpdate):
    """theta <- theta - lr * (sign(ghat) + weight_decay * theta), elementwise, with sign(0) = 0.

    The sign is taken of the mean over the q queries. Every value moves by lr, so a suitable lr is that of sign methods,
    far larger than ZO-SGD's. Cost: q noise passes. No state. Source: ZO-signSGD (Liu et al., 2019); ZO-Bench.
    """

    weight_decay: float = option(0.0, "decoupled, of parameters of two or more dimensions", least=0)

    def last_move(self, ghats: Sequence[float], lr: float) -> float:
        return -lr * ((ghats[-1] > 0) - (ghats[-1] < 0))

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        rounding.move_all(self, params, estimate, noise, lr, lambda name, ghat: ghat.sign_())
        return state
