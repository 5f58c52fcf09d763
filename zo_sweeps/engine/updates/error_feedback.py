"""Error feedback: the part of a step that rounding leaves over is added to the next one (QES)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.later import direction, torch, weight_only
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate, Theta
from zo_sweeps.methods.update import Params, State, Update

LIMIT = 1.5  # of |r|: what a code at the end of its range can be owed


@dataclass(frozen=True)
class ErrorFeedback(Update):
    """s = decay * r - lr * ghat;  D = round(s), 0 where c + D leaves the range;  c <- c + D;  r <- clip(s - D, 1.5).

    c are integer codes, r the residual of each, from 0 on. Rounding is to the nearest, ties to even. A constant step x
    per code adds up to x / (1 - decay), and so moves a code only if |x| >= (1 - decay) / 2; with decay 1, any does.

    State: {"residual": {name: fp16}}, 2 bytes per code, which a replay rebuilds. Cost: q noise passes; memory: one
    chunk in fp32. Source: QES (Xu et al., 2026, arXiv:2602.03120), with the constants of its released code. That code
    keeps r (the full-residual variant), or rebuilds it before each step from the last 50 with the masks of today's
    codes ("seed replay"), which is not exact. It also begins r at random in [-1/2, 1/2], and divides the differences of
    a step's losses by their standard deviation over the queries, so that its lr is the size of a step; here ghat is the
    estimator's.
    """

    state_copies: ClassVar[int] = 1
    state_bits: ClassVar[float] = 16

    decay: float = option(0.9, "share of the residual that is kept", least=0, most=1)

    @property
    def moves(self) -> frozenset[Theta]:
        return frozenset({Theta.CODES})

    def last_move(self, ghats: Sequence[float], lr: float) -> float:
        move = residual = 0.0
        for g in ghats:  # far from the ends of the range
            step = self.decay * residual - lr * g
            move, residual = round(step), step - round(step)
        return move

    def init(self, params: Params) -> State:
        return {"residual": {name: torch.zeros_like(param, dtype=torch.float16) for name, param in params.items()}}

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State:
        with torch.no_grad():
            for name, param in params.items():
                assert isinstance(param, weight_only.Integers), f"{name} does not hold integer codes"
                residuals = state["residual"][name].view(-1)
                for start, codes, ghat in direction.ghat_parts(estimate, noise, name, param):
                    residual = residuals[start : start + len(codes)]
                    # Products and sums apart: fused, they would round otherwise at the end of a chunk.
                    step = ghat.mul_(-lr).add_(residual.float().mul_(self.decay))
                    delta = step.round()
                    delta.masked_fill_((codes + delta).abs() > param.largest, 0)
                    codes += delta.to(codes.dtype)
                    residual.copy_(step.sub_(delta).clamp_(-LIMIT, LIMIT))
            return state
