"""ZO-SGD whose weights decay towards where they began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, rounding, torch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate
from zo_sweeps.methods.update import Params, RoundedUpdate, State


@dataclass(frozen=True)
class Anchored(RoundedUpdate):
    """theta <- theta - lr * (ghat + decay * (theta - theta_0)), theta_0 being the weights before the first step.

    Against the random walk in directions that the objective does not constrain, in which evolution strategies lose what
    the model could do before. All parameters decay, those of one dimension as well.

    State: {"start": {name: fp32}}, 4 bytes per trainable value, which a replay has from the weights it begins with.
    A sparse space that chooses its entries anew begins anew. Cost: q noise passes. Source: anchored weight decay
    (Schweighofer et al., 2026, arXiv:2605.30148); the default of `decay` is ours.
    """

    state_copies: ClassVar[int] = 1

    decay: float = option(0.1, "share of the distance from the start, times lr, that a step takes back", least=0)

    def last_move(self, ghats: Sequence[float], lr: float) -> float:
        distance = move = 0.0
        for g in ghats:
            move = -lr * (g + self.decay * distance)
            distance += move
        return move

    def init(self, params: Params) -> State:
        return {"start": {name: param.detach().to(torch.float32, copy=True) for name, param in params.items()}}

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        def step(name: str, ghat: Tensor) -> Tensor:
            distance = params[name].float() - state["start"][name]
            return ghat.add_(distance.mul_(self.decay))

        rounding.move_all(self, params, estimate, noise, lr, step)
        return state
