"""ZO-SGD."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from zo_sweeps.engine.direction import combine
from zo_sweeps.engine.types import Estimate, Params, Perturbation, State


@dataclass(frozen=True)
class SGD:
    """theta <- theta - lr * (ghat + weight_decay * theta), with ghat drawn again as it is added.

    Args:
        weight_decay: decays every parameter of the space that has two or more dimensions (matrices and embeddings;
            biases and norms are left alone).

    Cost: q noise passes over the space, none of it kept (memory of one parameter in half precision). No state.
    """

    weight_decay: float = 0.0

    def init(self, params: Params) -> State:
        return {}

    @torch.no_grad()
    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        for name, param in params.items():
            if self.weight_decay and param.dim() >= 2:
                param.mul_(1 - lr * self.weight_decay)
            combine(noise, [(key, -lr * weight) for key, weight in estimate.terms], name, param, out=param)
        return state
