"""The axis `update`: how an estimate moves theta."""

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
    schedule = member("schedule", "constant")()
    assert isinstance(schedule, Schedule)
    return schedule


@dataclass(frozen=True)
class Update(Definition):
    """A rule theta <- theta - lr * u(ghat, state); the state is explicit and returned.

    A rule that also serves backpropagated gradients sets `backpropagates` and defines `optimizer`.
    """

    axis: ClassVar[str] = "update"
    state_copies: ClassVar[int] = 0  # fp32 copies of the trainable parameters that its state holds
    evaluations: ClassVar[int] = 0  # points per step at which it evaluates f itself, besides the estimator's
    zeroth_order: ClassVar[bool] = True
    backpropagates: ClassVar[bool] = False

    lr: float = option(1e-6, "learning rate of step 1", least=0, kw_only=True)
    schedule: Schedule = option(_constant, "learning-rate schedule", kw_only=True)

    def rates(self, steps: int) -> Rates:
        """Return the function step -> learning rate for a run of `steps`."""
        return self.schedule.over(self.lr, steps)

    def init(self, params: Params) -> State:
        """Return the state before the first step."""
        return {}

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        """Move `params` in place; return the new state."""
        raise NotImplementedError

    def optimizer(self, groups: Sequence[Mapping[str, Any]]) -> torch.optim.Optimizer:
        """Return the torch optimizer with the same rule, for backpropagated gradients.

        Args:
            groups: torch parameter groups, each with its `weight_decay`.
        """
        raise NotImplementedError
