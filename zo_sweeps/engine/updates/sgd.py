"""ZO-SGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.engine.later import Tensor, direction, rounding, torch, weight_only
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation, Reads
from zo_sweeps.methods.points import REALS, Estimate, Theta
from zo_sweeps.methods.update import Params, RoundedUpdate, State


@dataclass(frozen=True)
class SGD(RoundedUpdate):
    """theta <- theta - lr * (ghat + weight_decay * theta), with ghat regenerated as it is added.

    With `nonnegative`, theta <- max(theta, 0) after that: QZO's update of quantization scales. Integer codes need
    stochastic rounding: theta <- clip(theta - Q(lr * (ghat + weight_decay * theta))), E[Q(x)] = x, to the codes' range:
    QuZO's update (arXiv:2502.12346), which rounds the step of each query, while here their sum is rounded, once.

    Cost: q noise passes over the space; memory: one parameter in half precision, else none. With stochastic rounding,
    three copies of a parameter in fp32 (for integer codes, of one chunk) and one more noise pass. No state.
    """

    backpropagates: ClassVar[bool] = True
    trains_halves: ClassVar[bool] = True
    adds_noise: ClassVar[bool] = True

    weight_decay: float = option(0.0, "decoupled, of parameters of two or more dimensions", least=0)
    nonnegative: bool = option(False, "parameters below 0 are set to 0 after a step", added=True, kw_only=True)

    @property
    def keeps_nonnegative(self) -> bool:
        return self.nonnegative

    @property
    def moves(self) -> frozenset[Theta]:
        return REALS | {Theta.CODES} if self.rounds_randomly else REALS

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        random, terms = rounding.rounding_key(self, estimate), [(key, -lr * weight) for key, weight in estimate.terms]
        with torch.no_grad():
            for name, param in params.items():
                if isinstance(param, weight_only.Integers):
                    assert random is not None, "integer codes need stochastic rounding"
                    rounding.move_integers(param, estimate, noise, lr, self.weight_decay, random, name)
                elif random is not None and param.dtype != torch.float32:
                    ghat = direction.ghat(estimate, noise, name, param)
                    rounding.move(param, ghat, lr, self.weight_decay, random, name)
                else:
                    base: Tensor = param
                    if self.weight_decay and param.dim() >= 2:
                        # Apart, where directions are of theta as it was at the points.
                        decayed = param.mul if noise.reads is Reads.WEIGHTS else param.mul_
                        base = decayed(1 - lr * self.weight_decay)
                    direction.combine(noise, terms, name, base, out=param)
                if self.nonnegative:
                    param.clamp_(min=0)
            return state

    def optimizer(self, groups: Sequence[Mapping[str, Any]]) -> torch.optim.Optimizer:
        """Return plain SGD, without momentum."""
        return torch.optim.SGD([dict(group) for group in groups], lr=self.lr)
