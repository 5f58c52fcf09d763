"""Evolution strategies without mirrored points: ES at Scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from zo_sweeps.engine.estimators._population import Population
from zo_sweeps.engine.estimators.es import zscores
from zo_sweeps.methods.definition import option


@dataclass(frozen=True)
class ESOneSided(Population):
    """ghat = (1/q) sum_i g_i z_i with g_i = (f(theta + eps z_i) - mean) / deviation, over the step's q losses.

    g_i has no unit, so that lr and q alone set the size of a step; if all losses are equal, g_i is 0. On a linear f,
    g_i is the slope minus the mean slope, over their standard deviation. Cost: q forwards of the batch. Source: Qiu et
    al., Evolution strategies at scale: LLM fine-tuning beyond reinforcement learning, 2025: N = 30, sigma = 1e-3 (eps),
    alpha = 5e-4, which is lr here (its update has no 1 / sigma).
    """

    centred: ClassVar[bool] = True

    q: int = option(30, "query budget: directions per step, one point each", least=2)

    @property
    def bound(self) -> float:
        return sqrt(self.q - 1)  # one loss unlike all others

    def shaped(self, losses: Sequence[float]) -> Sequence[float]:
        return zscores(losses)
