"""The axis `update`: how theta moves by an estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from zo_sweeps.methods.definition import Definition, option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate
from zo_sweeps.methods.registry import member
from zo_sweeps.methods.schedule import Rates, Schedule

if TYPE_CHECKING:
    import torch
    from torch import nn

Params = Mapping[str, "nn.Parameter"]
State = dict[str, Any]


def _constant() -> Schedule:
    made = member("schedule", "constant")()
    assert isinstance(made, Schedule)
    return made


@dataclass(frozen=True)
class Update(Definition):
    """theta <- theta - lr * (something of ghat). State is explicit and returned.

    One that is used on gradients of backpropagation as well has `backpropagates` and `optimizer`.
    """

    axis: ClassVar[str] = "update"
    state_copies: ClassVar[int] = 0  # fp32 copies of the trainable parameters that its state holds
    evaluations: ClassVar[int] = 0  # points per step at which it evaluates f itself, beyond the estimator's
    zeroth_order: ClassVar[bool] = True
    backpropagates: ClassVar[bool] = False

    lr: float = option(1e-6, "learning rate of step 1", least=0, kw_only=True)
    schedule: Schedule = option(_constant, "how the learning rate goes over the steps", kw_only=True)

    def rates(self, steps: int) -> Rates:
        """Return step -> learning rate for a run of `steps`."""
        return self.schedule.over(self.lr, steps)

    def init(self, params: Params) -> State:
        """Return the state before the first step."""
        return {}

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        """Move `params` in place; return the new state."""
        raise NotImplementedError

    def optimizer(self, groups: Sequence[Mapping[str, Any]]) -> torch.optim.Optimizer:
        """Return torch's optimizer of the same rule, for gradients of backpropagation.

        Args:
            groups: torch's parameter groups, with `weight_decay` in them.
        """
        raise NotImplementedError
