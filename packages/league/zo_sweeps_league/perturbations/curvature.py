"""z scaled by a running diagonal Hessian: HiZOO."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, noise, rounding, torch
from zo_sweeps.methods.definition import bound, option
from zo_sweeps.methods.estimator import CURVATURE
from zo_sweeps.methods.perturbation import Params, Perturbation, Reads, State
from zo_sweeps.methods.points import Estimate, NoiseKey


@dataclass(frozen=True)
class Curvature(Perturbation):
    """z = g / sqrt(H), g of N(0, I), and H <- (1 - alpha) H + alpha |c| / 2 H g^2 after a step; H = 1 before step 1.

    c = (f(theta + eps z) + f(theta - eps z) - 2 f(theta)) / eps^2 is the second derivative along z, the mean over the
    step's queries where there are several. On a diagonal quadratic with second derivatives h, E[c H_i g_i^2 / 2] = h_i
    + H_i / 2 sum_j h_j / H_j: the second term is about the trace over the d parameters, and swamps h_i unless d is
    small. alpha = 0 is MeZO: the released scripts run with it (`constant0`), their README names 1e-8.

    Given H, E[z z^T] = 1 / H. Points and update share a direction: the paper's algorithm and the release evaluate along
    1 / sqrt(H) of before the step and move along that of after it. State: {"H": {name: fp32}}. Cost: MeZO's noise, a
    read of H with each, a pass to update it. Source: Zhao et al., Second-order fine-tuning without pain for LLMs: A
    Hessian informed zeroth-order optimizer (HiZOO), 2024.
    """

    numerics: ClassVar[int] = 2
    reads: ClassVar[Reads] = Reads.LOG
    state_copies: ClassVar[int] = 1
    needs: ClassVar[str] = CURVATURE

    alpha: float = option(1e-8, "smoothing of H", least=0, most=1)
    H: State | None = bound()

    def init(self, params: Params) -> State:
        return {"H": {name: torch.ones_like(param, dtype=torch.float32) for name, param in params.items()}}

    def at(self, params: Params, state: State, step: int) -> Curvature:
        return replace(self, H=state["H"])

    def observe(self, params: Params, estimate: Estimate, state: State) -> State:
        curvatures = estimate.coefs[len(estimate.coefs) // 2 :]
        queries = [(key, abs(curvatures[key.query]) / 2) for key, _ in estimate.terms]
        with torch.no_grad():
            for name, H in state["H"].items():
                seen = torch.zeros_like(H)
                for key, half in queries:
                    rounding.add_square(seen, noise.gaussian(key, name, H.shape, H.device), half / len(queries))
                H.mul_(seen.mul_(self.alpha).add_(1 - self.alpha))
        return state

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        z = noise.gaussian(key, name, shape, device)
        return z if self.H is None else z.div_(rounding.root(self.H[name].clone()))
