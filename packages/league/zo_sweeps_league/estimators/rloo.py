"""Points compared with the mean of the others: RLOO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.estimators._population import Population


@dataclass(frozen=True)
class RLOO(Population):
    """ghat = (1/q) sum_i g_i z_i, g_i = (f(theta + eps z_i) - mean of the other q - 1 losses) / eps.

    The mean of the others is independent of z_i and takes the place of f(theta), which is not evaluated. g_i equals
    q / (q - 1) times the difference from the mean of all q. On a linear f, E[ghat] = grad f; the variance is about
    q / (q - 1) times that of forward differences. The bias on a quadratic is that of forward differences.

    Cost: q forwards of the batch. Source: the REINFORCE leave-one-out estimator, as LOREN (Seung et al., 2025) has it.
    """

    centred: ClassVar[bool] = True

    def shaped(self, losses: Sequence[float]) -> Sequence[float]:
        mean, others = sum(losses) / len(losses), len(losses) - 1
        return [(loss - mean) / self.eps * len(losses) / others if others else 0.0 for loss in losses]
