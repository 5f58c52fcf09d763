"""ZO-sign-SGD."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from zo_sweeps.engine.direction import ghat
from zo_sweeps.engine.types import Estimate, Params, Perturbation, State
from zo_sweeps.engine.updates._move import move


@dataclass(frozen=True)
class Sign:
    """theta <- theta - lr * (sign(ghat) + weight_decay * theta), elementwise, with sign(0) = 0.

    Args:
        weight_decay: decays the parameters of two or more dimensions; it does not enter the sign.

    The sign is of the mean over the q queries. Every value moves by lr, so lr is that of sign methods: far above
    ZO-SGD's. Cost: q noise passes. No state. Source: ZO-signSGD (Liu et al., 2019); ZO-Bench.
    """

    weight_decay: float = 0.0

    def init(self, params: Params) -> State:
        return {}

    @torch.no_grad()
    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        for name, param in params.items():
            move(param, ghat(estimate, noise, name, param).sign_(), lr, self.weight_decay)
        return state
