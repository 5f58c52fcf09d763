"""ZO-SGD with momentum."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from zo_sweeps.engine.direction import ghat
from zo_sweeps.engine.types import Estimate, Params, Perturbation, State
from zo_sweeps.engine.updates._move import move, zeros


@dataclass(frozen=True)
class Momentum:
    """m <- momentum * m + ghat;  theta <- theta - lr * (m + weight_decay * theta).

    Args:
        momentum: mu of heavy-ball momentum, without dampening: a constant ghat moves theta by lr / (1 - mu) of it.
        weight_decay: decays the parameters of two or more dimensions; it does not enter m.

    State: {"m": {name: fp32}}, 4 bytes a trainable value. Cost: q noise passes. Source: ZO-SGD-MMT of ZO-Bench (Zhang
    et al., 2024), with its 0.9.
    """

    momentum: float = 0.9
    weight_decay: float = 0.0

    def init(self, params: Params) -> State:
        return {"m": zeros(params)}

    @torch.no_grad()
    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        for name, param in params.items():
            m = state["m"][name].mul_(self.momentum).add_(ghat(estimate, noise, name, param))
            move(param, m, lr, self.weight_decay)
        return state
