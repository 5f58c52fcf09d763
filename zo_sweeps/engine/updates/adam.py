"""ZO-Adam."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from zo_sweeps.engine.direction import ghat
from zo_sweeps.engine.types import Estimate, Params, Perturbation, State
from zo_sweeps.engine.updates._move import move, zeros


@dataclass(frozen=True)
class Adam:
    """Adam on ghat, with bias correction and decoupled weight decay:

        m <- beta1 m + (1 - beta1) ghat;  v <- beta2 v + (1 - beta2) ghat^2
        theta <- theta - lr * (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * theta)

    Args:
        weight_decay: decays the parameters of two or more dimensions; it does not enter m or v.

    State: {"t": updates done, "m": {name: fp32}, "v": {name: fp32}}, 8 bytes a trainable value. Cost: q noise passes.
    Source: Kingma and Ba, 2015; on ZO estimates, MeZO (section 3.3) and ZO-Bench (Zhang et al., 2024).
    """

    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def init(self, params: Params) -> State:
        return {"t": 0, "m": zeros(params), "v": zeros(params)}

    @torch.no_grad()
    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        t = state["t"] + 1
        for name, param in params.items():
            g = ghat(estimate, noise, name, param)
            m = state["m"][name].mul_(self.beta1).add_(g, alpha=1 - self.beta1)
            v = state["v"][name].mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            scale = (v / (1 - self.beta2**t)).sqrt_().add_(self.eps)
            move(param, torch.div(m, scale, out=g).div_(1 - self.beta1**t), lr, self.weight_decay)
        return {**state, "t": t}
