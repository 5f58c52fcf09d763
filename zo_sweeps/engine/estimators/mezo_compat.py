"""The two-sided estimate with MeZO's rounding, for runs that must be bit-identical to its released code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.later import torch
from zo_sweeps.methods.points import Estimate, Point


@dataclass(frozen=True)
class MezoCompat(RGE):
    """RGE with projected_grad = (f(theta + eps z) - f(theta - eps z)) / (2 eps) computed in fp32.

    MeZO's code divides fp32 tensors; RGE divides in double precision, which is more accurate and differs in the last
    bits. Use RGE for everything but comparisons with MeZO.
    """

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        plus, minus = torch.tensor(losses[::2], dtype=torch.float32), torch.tensor(losses[1::2], dtype=torch.float32)
        coefs = ((plus - minus) / (2 * self.eps)).tolist()
        return self._estimate(points, self._clipped(coefs), losses)
