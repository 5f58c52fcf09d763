"""ZO-SGD."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from zo_sweeps.engine.types import Estimate, Params, Perturbation, State


@dataclass(frozen=True)
class SGD:
    """theta <- theta - lr * (ghat + weight_decay * theta), with ghat drawn again a parameter at a time.

    Args:
        weight_decay: decays every parameter of the space that has two or more dimensions (matrices and embeddings;
            biases and norms are left alone).

    Cost: q noise passes over the space; memory of one parameter. No state.
    """

    weight_decay: float = 0.0

    def init(self, params: Params) -> State:
        return {}

    @torch.no_grad()
    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        for name, param in params.items():
            ghat: torch.Tensor | None = None
            for key, weight in estimate.terms:
                z = noise.sample(key, name, param.shape, param.device)
                ghat = z.mul_(weight) if ghat is None else ghat.add_(z, alpha=weight)
            assert ghat is not None, "an estimate has at least one term"
            if self.weight_decay and param.dim() >= 2:
                ghat = ghat.add(param, alpha=self.weight_decay)
            param.sub_(ghat.to(param.dtype), alpha=lr)
        return state
