"""Evolution strategies: RGE's points, with the losses of a step's population shaped before they are compared."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Literal

from zo_sweeps.engine.estimators._population import deviation
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.estimator import TwoSided
from zo_sweeps.methods.points import Estimate, Point


@dataclass(frozen=True)
class ES(TwoSided):
    """ghat = (1/q) sum_i g_i z_i with g_i = (s(theta + eps z_i) - s(theta - eps z_i)) / 2, s the shaped loss.

    Args:
        eps: sigma of evolution strategies.
        shape: how a step's 2q losses f become s. `zscore`: (f - mean) / standard deviation. `centered_ranks`: rank /
            (2q - 1) - 1/2, ranks from 0 for the lowest f, equal losses sharing their mean rank. If all losses are
            equal, s is 0.

    `zscore` does not change if f is scaled or shifted, `centered_ranks` under any increasing map, so that lr and q
    alone set the size of a step. On a linear f, `zscore` is RGE's estimate divided by the root mean square of its q
    coefficients, and for Gaussian z, E||ghat||^2 = 1 + (d - 1) / q: at q = 1 the step has the length of z, and for
    large q ghat tends to grad f / |grad f|.

    Cost: 2q forwards of the batch. Source: Salimans et al., Evolution strategies as a scalable alternative to
    reinforcement learning, 2017 (mirrored sampling, centred ranks); EGGROLL (arXiv:2511.16652), whose released code
    adds 1e-5 to the variance (left out: in fine-tuning, losses of points 2 eps apart may differ by less than that root)
    and multiplies by sigma sqrt(2q): its lr is ours / (eps sqrt(2q)), for plain SGD.
    """

    curvature: ClassVar[None] = None
    compares: ClassVar[bool] = True

    q: int = option(8, "query budget: directions per step, two points each", least=1)
    shape: Literal["zscore", "centered_ranks"] = option("zscore", "how a step's losses are scaled")

    def on_linear(self, slopes: Sequence[float], points: Sequence[Point]) -> Sequence[float]:
        if self.shape == "zscore":
            return [slope / sqrt(sum(one * one for one in slopes) / len(slopes)) for slope in slopes]
        signed = [sign * slope for slope in slopes for sign in (1, -1)]  # a point's rank counts the points below it
        below = [sum(other < one for other in signed) / (len(signed) - 1) for one in signed]
        return [(plus - minus) / 2 for plus, minus in zip(below[::2], below[1::2], strict=True)]

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        shaped = zscores(losses) if self.shape == "zscore" else _centered_ranks(losses)
        coefs = [(plus - minus) / 2 for plus, minus in zip(shaped[::2], shaped[1::2], strict=True)]
        return self._estimate(points, coefs, losses)


def zscores(losses: Sequence[float]) -> list[float]:
    """Return (f - mean) / standard deviation of each loss; 0 where all are equal."""
    mean, spread = sum(losses) / len(losses), deviation(losses)
    return [(loss - mean) / spread if spread else 0.0 for loss in losses]


def _centered_ranks(losses: Sequence[float]) -> list[float]:
    in_order = sorted(losses)
    ranks = [(bisect_left(in_order, loss) + bisect_right(in_order, loss) - 1) / 2 for loss in losses]
    return [rank / (len(losses) - 1) - 0.5 for rank in ranks]
