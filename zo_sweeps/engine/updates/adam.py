"""ZO-Adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

from zo_sweeps.engine.later import Tensor, rounding, torch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate
from zo_sweeps.methods.update import Params, RoundedUpdate, State


@dataclass(frozen=True)
class Adam(RoundedUpdate):
    """Adam on ghat, with bias correction and decoupled weight decay:

        m <- beta1 m + (1 - beta1) ghat;  v <- beta2 v + (1 - beta2) ghat^2
        theta <- theta - lr * (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * theta)

    Args:
        fused: for backpropagation, torch's kernel that moves all parameters at once, as transformers' Trainer runs
            AdamW from torch 2.8 on; else torch's own choice, a loop on a CPU and lists of tensors on a GPU. The two
            round differently.

    State: {"t": updates done, "m": {name: fp32}, "v": {name: fp32}}, 8 bytes per trainable value. Cost: q noise passes.
    Source: Kingma and Ba, 2015; on ZO estimates, MeZO (section 3.3) and ZO-Bench (Zhang et al., 2024).
    """

    state_copies: ClassVar[int] = 2
    portable: ClassVar[bool] = False  # addcmul and torch's root, as torch's own Adam
    backpropagates: ClassVar[bool] = True

    weight_decay: float = option(0.0, "decoupled, of parameters of two or more dimensions", least=0)
    beta1: float = option(0.9, "decay of the mean of estimates", least=0, below=1)
    beta2: float = option(0.999, "decay of the mean of their squares", least=0, below=1)
    eps: float = option(1e-8, "added to the root", above=0)
    fused: bool = option(False, "backpropagation: one kernel for the whole step", added=True, kw_only=True)
    lr: float = option(1e-4, "learning rate of step 1", least=0, kw_only=True)

    @property
    def steps_fused(self) -> bool:
        return self.fused

    def last_move(self, ghats: Sequence[float], lr: float) -> float:
        m, v = (
            sum((1 - beta) * beta**age * g**power for age, g in enumerate(reversed(ghats))) / (1 - beta ** len(ghats))
            for beta, power in ((self.beta1, 1), (self.beta2, 2))
        )
        return -lr * m / (sqrt(v) + self.eps)

    def init(self, params: Params) -> State:
        return {"t": 0, "m": rounding.zeros(params), "v": rounding.zeros(params)}

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        t = state["t"] + 1

        def step(name: str, g: Tensor) -> Tensor:
            m = state["m"][name].mul_(self.beta1).add_(g, alpha=1 - self.beta1)
            v = state["v"][name].mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            scale = (v / (1 - self.beta2**t)).sqrt_().add_(self.eps)
            return torch.div(m, scale, out=g).div_(1 - self.beta1**t)

        rounding.move_all(self, params, estimate, noise, lr, step)
        return {**state, "t": t}

    def optimizer(self, groups: Sequence[Mapping[str, Any]]) -> torch.optim.Optimizer:
        """Return AdamW, which equals Adam without weight decay."""
        own, fused = [dict(group) for group in groups], self.fused or None  # None: torch's choice
        return torch.optim.AdamW(own, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.eps, fused=fused)
