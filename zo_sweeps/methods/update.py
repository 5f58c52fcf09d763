"""The axis `update`: how an estimate moves theta."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from zo_sweeps.methods.definition import Definition, option
from zo_sweeps.methods.perturbation import Params, Perturbation, State
from zo_sweeps.methods.points import REALS, Estimate, Theta
from zo_sweeps.methods.schedule import Rates, Schedule

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Params", "RoundedUpdate", "Rounding", "State", "Update"]


class Rounding(str, Enum):
    """Rounding of updated weights to half precision or integers: to the nearest number, or up or down at random."""

    NEAREST = "nearest"
    STOCHASTIC = "stochastic"


@dataclass(frozen=True)
class Update(Definition):
    """A rule theta <- theta - lr * u(ghat, state); the state is explicit and returned.

    A rule that also serves backpropagated gradients sets `backpropagates` and defines `optimizer`.
    """

    axis: ClassVar[str] = "update"
    state_copies: ClassVar[int] = 0  # copies of the trainable parameters that its state holds
    state_bits: ClassVar[float] = 32  # per value of these copies, with what decodes them
    evaluations: ClassVar[int] = 0  # points per step at which it evaluates f itself, besides the estimator's
    zeroth_order: ClassVar[bool] = True
    backpropagates: ClassVar[bool] = False
    draws_again: ClassVar[bool] = False  # directions of earlier steps, from their addresses alone
    one_by_one: ClassVar[bool] = False  # the weights have moved along a direction before the next is drawn
    needs_factors: ClassVar[bool] = False  # of a matrix's directions: a perturbation that keeps one of them
    reads_coefs: ClassVar[bool] = False  # of the step's directions, not their sum alone
    divides_by_mean: ClassVar[bool] = False  # of the coefficients: not of those that add up to 0
    trains_halves: ClassVar[bool] = False  # its `optimizer` computes in fp32 where the weights are in half precision
    has_kernels: ClassVar[bool] = False  # of a library: tried on a device before it is planned there
    portable: ClassVar[bool] = True  # its values have the same bits on every device
    adds_noise: ClassVar[bool] = False  # to fp32 parameters, as it is made: the estimate is never stored

    lr: float = option(1e-6, "learning rate of step 1", least=0, kw_only=True)
    schedule: Schedule = option(lambda: Schedule.read("constant"), "learning-rate schedule", kw_only=True)

    @property
    def rounds_randomly(self) -> bool:
        """Whether weights in half precision are rounded so that the mean of their updates is the one that was meant."""
        return False

    @property
    def keeps_state(self) -> bool:
        """Whether a step depends on earlier ones by more than theta."""
        return type(self).init is not Update.init

    @property
    def steps_fused(self) -> bool:
        """Whether `optimizer` moves all parameters in one kernel of torch's."""
        return False

    @property
    def keeps_nonnegative(self) -> bool:
        """Whether parameters below 0 are set to 0 after a step."""
        return False

    @property
    def moves(self) -> frozenset[Theta]:
        """What it moves; integer codes, by integers."""
        return REALS

    def rates(self, steps: int) -> Rates:
        """Return the function step -> learning rate for a run of `steps`."""
        return self.schedule.over(self.lr, steps)

    def last_move(self, ghats: Sequence[float], lr: float) -> float:
        """Return by how much the last of several steps, from the first one on, moves a value; without weight decay.

        Args:
            ghats: the value's estimates, one per step.
        """
        return -lr * ghats[-1]

    def choose(self, estimate: Estimate, lr: float, along: Callable[[Sequence[float]], list[float]]) -> Estimate:
        """Return the estimate, which an update with `evaluations` scales (with its log) by what f is along ghat.

        Args:
            along: scales -> f(theta + scale * ghat) for each.
        """
        return estimate

    def last_moves(self, ghats: Sequence[Tensor], coefs: Sequence[Sequence[float]], lr: float) -> Tensor:
        """Return by how much the last of several steps moves a parameter: `last_move` of each of its values.

        Args:
            ghats: the parameter's estimates, one per step; coefs: the coefficients of these steps.
        """
        import torch

        values = zip(*(ghat.flatten().tolist() for ghat in ghats), strict=True)
        return torch.tensor([self.last_move(one, lr) for one in values]).view(ghats[-1].shape)

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


@dataclass(frozen=True)
class RoundedUpdate(Update):
    """An update that can round stochastically.

    In half precision an update far below the weight's spacing is lost when it is rounded to the nearest number (see
    `updates_lost`). Rounded up or down at random, in proportion to the distances, the weight is the meant one in the
    mean. The random numbers are addressed, by (seed, step, parameter, element), so that a replay has the same bits.
    See `zo_sweeps.engine.rounding.stochastic`. Weights in fp32 are not affected.
    """

    rounding: Rounding = option(
        Rounding.NEAREST, "of weights in half precision: nearest, or stochastic (unbiased, replayable)", kw_only=True
    )

    @property
    def rounds_randomly(self) -> bool:
        return self.rounding is Rounding.STOCHASTIC
