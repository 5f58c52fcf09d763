"""ZO-SGD with MeZO's rounding, for runs that must have the bits of its released code."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from zo_sweeps.engine.types import Estimate, Params, Perturbation, State


@dataclass(frozen=True)
class MezoCompat:
    """theta <- theta - lr * (g * z + weight_decay * theta), every product rounded before the next operation.

    SGD's single fused multiply-add is faster and rounds once less. Use SGD for anything but comparing with MeZO.

    Args:
        weight_decay: of the parameters whose name has none of "bias", "layer_norm", "layernorm" in it, MeZO's rule.

    With q > 1 one update after the other, each with g / q. No state.
    """

    weight_decay: float = 0.0

    def init(self, params: Params) -> State:
        return {}

    @torch.no_grad()
    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        for key, weight in estimate.terms:
            for name, param in params.items():
                ghat = noise.sample(key, name, param.shape, param.device).mul_(weight)
                if self.weight_decay and not any(part in name for part in ("bias", "layer_norm", "layernorm")):
                    ghat += self.weight_decay / len(estimate.terms) * param
                param.sub_(ghat.mul_(lr).to(param.dtype))
        return state
