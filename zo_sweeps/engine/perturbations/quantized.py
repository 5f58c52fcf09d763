"""Directions rounded at random to integers: QuZO and QES."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, noise, rounding, torch
from zo_sweeps.methods.definition import bound, option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Layout, NoiseKey, Point, Theta


@dataclass(frozen=True)
class Quantized(Perturbation):
    """z = Q(eps g) / eps, g ~ N(0, I): theta +/- eps z = theta +/- u with u = Q(eps g) a vector of integers.

    Q rounds each element down or up at random, E[Q(x)] = x (see `zo_sweeps.engine.rounding.whole`). A code that u would
    take out of its range stays where it is, at that point; in the estimate, u_j counts by the share of the two points
    theta + u, theta - u at which code j moves (1, 1/2 or 0), with a one-sided estimator too.

    With `independent` (QuZO), the points use u = Q1(eps g) and the update u' = Q2(eps g), of the same g with other
    random numbers: E[u u'^T] = eps^2 I, so that the estimate is unbiased on a linear f, in units of f per code. Without
    it (QES), u' = u and E[u u^T] = (eps^2 + v) I with v = E[p (1 - p)], p the fractional part of eps |g|: unbiased but
    for a factor, 1 + v / eps^2. v is near 1/6 for eps from 1/2 on, and 0.8 eps - eps^2 below 1/4, so that the factor is
    0.8 / eps: there a code moves in one direction of 1 / (0.8 eps), by 1, and u' meets few of the codes that u moved.

    eps is the estimator's, in codes. Cost: 1 pass of Gaussian and 1 of uniform noise; memory: one chunk in fp32.
    Source: QuZO (Zhou et al., 2025, arXiv:2502.12346), whose two quantizers of one u are Q1 and Q2; it rounds u itself
    to a low-bit grid and multiplies by eps, while here eps g is rounded, so that points lie on the weights' own grid. A
    public copy of its trainer (github.com/jmha02/QuZO) uses one seed, u' = u, masks a random half of u, and adds it to
    weights in floating point: not followed. QES (Xu et al., 2026, arXiv:2602.03120) and its released code: mirrored
    pairs and masks as here; the code also clamps u to the number of codes, which only matters where |u| exceeds it.
    """

    moves: ClassVar[frozenset[Theta]] = frozenset({Theta.CODES})

    independent: bool = option(True, "the update rounds a direction anew, instead of using that of the points")
    eps: float | None = bound()

    def bind(self, layout: Layout) -> Quantized:
        return replace(self, eps=layout.eps)

    def second_moment(self, shape: torch.Size) -> float:
        """Return 1 + E[p (1 - p)] / eps^2, p the fractional part of eps |g|: 1/6, to 3e-10 from eps = 1 on."""
        return 1 + 1 / (6 * self._eps**2)

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        eps = self._eps
        return _integers(key, eps, name, "points", shape.numel(), device, 0).view(shape).div_(eps)

    def point(self, point: Point, name: str, codes: Tensor, largest: int, start: int) -> Tensor:
        here = codes.float()
        there = here + _integers(point.key, point.scale, name, "points", len(codes), codes.device, start)
        return torch.where(there.abs() <= largest, there, here).to(codes.dtype)

    def ghat(
        self, terms: Sequence[tuple[NoiseKey, float]], name: str, codes: Tensor, largest: int, start: int
    ) -> Tensor:
        here, numbers = codes.float(), "update" if self.independent else "points"
        total = torch.zeros_like(here)
        for key, weight in terms:
            u = _integers(key, self._eps, name, numbers, len(codes), codes.device, start)
            sides = ((here + u).abs() <= largest).float().add_((here - u).abs() <= largest)
            total += u.mul_(sides).mul_(0.5 * weight / self._eps)
        return total

    @property
    def _eps(self) -> float:
        assert self.eps is not None, "bind the perturbation to the parameters first"
        return self.eps


def _integers(
    key: NoiseKey, scale: float, name: str, numbers: str, count: int, device: torch.device, start: int
) -> Tensor:
    """Return Q(scale g) of a parameter's elements start, start + 1, ..., [count] fp32; `numbers` is the name of Q's."""
    values = noise.combine([(key, scale)], name, torch.Size([count]), device, start=start)
    return rounding.whole(values, key, f"{name}/{numbers}", start)
