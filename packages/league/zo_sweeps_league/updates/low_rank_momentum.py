"""Momentum within the low-rank basis of the directions: LOZO-m."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, direction, rounding, torch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import FactoredPerturbation, Perturbation
from zo_sweeps.methods.points import Estimate
from zo_sweeps.methods.update import Params, RoundedUpdate, State


@dataclass(frozen=True)
class LowRankMomentum(RoundedUpdate):
    """N <- momentum N + (1 - momentum) sum_i c_i U_i;  W <- W - lr * (N V^T + weight_decay W), of directions U_i V^T.

    When V is drawn anew, N is first expressed in the new basis: N <- N V^T V' / n, V'^T V' being about n I for a V' of
    N(0, 1). In other shapes than matrices, theta <- theta - lr * ghat. For directions that keep such a V for a window,
    and one direction a step: queries have a V each.

    State: N [m, r] of each matrix, made at its first step, and the last V's address. Cost: one noise pass, and the V of
    the step before. Source: Chen et al., LOZO, Algorithm 2 (LOZO-M), 2024.
    """

    needs_factors: ClassVar[bool] = True

    momentum: float = option(0.9, "mu, with dampening", least=0, most=1)
    weight_decay: float = option(0.0, "decoupled, of parameters of two or more dimensions", least=0)

    def last_moves(self, ghats: Sequence[Tensor], coefs: Sequence[Sequence[float]], lr: float) -> Tensor:
        return -lr * ghats[-1]  # of directions without factors

    def init(self, params: Params) -> State:
        return {"N": {}, "key": None}

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        random, kept, last = rounding.rounding_key(self, estimate), {}, state["key"]
        with torch.no_grad():
            for name, param in params.items():
                if param.dim() != 2 or not isinstance(noise, FactoredPerturbation):
                    ghat = direction.ghat(estimate, noise, name, param)
                    rounding.move(param, ghat, lr, self.weight_decay, random, name)
                    continue
                ((key, weight),) = estimate.terms
                U, V = noise.factors(key, name, param.shape, param.device)
                N = state["N"].get(name, torch.zeros_like(U))
                if last is not None:
                    before = noise.factors(last, name, param.shape, param.device)[1]
                    if not torch.equal(before, V):
                        N = N @ (before.T @ V).div_(len(V))
                kept[name] = N.mul_(self.momentum).add_(U, alpha=(1 - self.momentum) * weight)
                rounding.move(param, kept[name] @ V.T, lr, self.weight_decay, random, name)
            return {"N": kept, "key": estimate.terms[0][0]}
