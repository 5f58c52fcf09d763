"""RGE by forward differences over the spread of the step's losses: FZOO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.estimators._population import deviation
from zo_sweeps.engine.estimators.rge_one_sided import RGEOneSided
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.points import Point


@dataclass(frozen=True)
class FZOO(RGEOneSided):
    """ghat = (1/q) sum_i g_i z_i with g_i = (f(theta + eps z_i) - f(theta)) / s.

    s is the standard deviation of f(theta + eps z_1), ..., f(theta + eps z_q) around their mean, over q (not q - 1).
    g_i has no unit: neither the scale of f nor, to first order, eps changes it, so that the length of a step is set by
    lr and q alone. If all losses are equal, g_i is 0. On a linear f, g_i is the slope z_i . grad f over the standard
    deviation of the q slopes.

    Cost: q + 1 forwards of the batch. Source: Dang et al., FZOO: Fast zeroth-order optimizer for fine-tuning large
    language models towards Adam-scale speed, 2025, with the population deviation and the quotient of its released code
    (d4f8a8b); the paper divides by eps too, so its lr is eps times this one. Directions there are Rademacher's.
    """

    compares: ClassVar[bool] = True

    q: int = option(8, "query budget: directions per step", least=2)

    def on_linear(self, slopes: Sequence[float], points: Sequence[Point]) -> Sequence[float]:
        spread = deviation(slopes)
        return [slope / spread for slope in slopes]

    def _quotients(self, losses: Sequence[float]) -> list[float]:
        spread = deviation(losses[1:]) / self.eps
        return [g / spread if spread else 0.0 for g in super()._quotients(losses)]
