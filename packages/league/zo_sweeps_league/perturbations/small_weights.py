"""z on the small weights of every matrix, as they are at the step: Sparse-MeZO."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.methods.definition import bound, option
from zo_sweeps.methods.perturbation import Params, Perturbation, Reads, State
from zo_sweeps.methods.points import NoiseKey


@dataclass(frozen=True)
class SmallWeights(Perturbation):
    """z_j = g_j [|theta_j| <= h], g_j of N(0, 1), in a matrix; N(0, 1) in any other shape.

    h is the ceil((1 - sparsity) numel)-th smallest |theta_j| of the matrix: of the weights before step 1, as in the
    paper, or of those at each step (`threshold`). The mask itself is of theta at the step. sparsity 0: MeZO. Raises
    UserError for a matrix with h = 0 before step 1, as B of LoRA: no entry that has moved would move again.

    E[z z^T] is the mask; the estimate's mean is the gradient where it is 1. The mask is computed again wherever it is
    needed: no memory, and a replay needs the weights of each step, which it has. Cost: MeZO's, and one comparison per
    element and direction; the threshold is a selection over each matrix, once or at every step. Source: Liu et al.,
    Sparse MeZO: Less parameters for better performance in zeroth-order LLM fine-tuning, 2024.
    """

    reads: ClassVar[Reads] = Reads.WEIGHTS

    sparsity: float = option(0.75, "share of a matrix that does not move", least=0, most=1)
    threshold: Literal["initial", "current"] = option("initial", "of the weights before step 1, or at each step")
    params: Params | None = bound()
    limits: State | None = bound()

    @property
    def no_zeros(self) -> str:
        if self.threshold == "current" or not self.sparsity:
            return ""
        return "moves what is small before step 1; use perturbation.threshold=current"

    def init(self, params: Params) -> State:
        limits = self._limits(params) if self.threshold == "initial" else {}
        if zeros := [name for name, limit in limits.items() if not limit]:
            raise UserError(f"{zeros[0]} begins at 0, and perturbation={self.name} {self.no_zeros}")
        return limits

    def at(self, params: Params, state: State, step: int) -> SmallWeights:
        return replace(self, params=params, limits=state or self._limits(params))

    def second_moment(self, shape: torch.Size) -> float | None:
        return None if len(shape) == 2 else 1.0

    def _limits(self, params: Params) -> State:
        """Return h of each matrix, 0-d."""
        return {name: self._limit(param) for name, param in params.items() if param.dim() == 2}

    def _limit(self, param: Tensor) -> Tensor:
        flat = param.detach().flatten().abs().float()
        moving = max(1, math.ceil((1 - self.sparsity) * flat.numel()))
        return torch.kthvalue(flat, moving).values if moving < flat.numel() else torch.tensor(math.inf)

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        z = noise.gaussian(key, name, shape, device)
        if len(shape) != 2:
            return z
        assert self.params is not None, "ask for the distribution `at` a step first"
        assert self.limits is not None
        return z.mul_(self.params[name].detach().abs() <= self.limits[name].to(device))
