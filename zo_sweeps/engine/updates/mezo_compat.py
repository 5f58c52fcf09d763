"""ZO-SGD with MeZO's rounding, for runs that must be bit-identical to its released code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.later import torch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate
from zo_sweeps.methods.update import Params, State, Update


@dataclass(frozen=True)
class MezoCompat(Update):
    """theta <- theta - lr * (g * z + weight_decay * theta), every operation rounded to the parameter's dtype.

    SGD's single fused multiply-add is faster and rounds once less. Use SGD for everything but comparisons with MeZO.

    Args:
        weight_decay: decay of parameters whose names contain none of "bias", "layer_norm", "layernorm" (MeZO's rule).

    With q > 1, one update per query, each with g / q. No state.
    """

    one_by_one: ClassVar[bool] = True

    weight_decay: float = option(0.0, "by MeZO's rule, on names without bias and layer_norm", least=0)

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        with torch.no_grad():
            for key, weight in estimate.terms:
                for name, param in params.items():
                    ghat = noise.sample(key, name, param.shape, param.device).to(param.dtype).mul_(weight)
                    if self.weight_decay and not any(part in name for part in ("bias", "layer_norm", "layernorm")):
                        ghat += self.weight_decay / len(estimate.terms) * param
                    param.sub_(ghat.mul_(lr))
            return state
