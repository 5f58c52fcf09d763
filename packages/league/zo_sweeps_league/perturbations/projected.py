"""z = P u in the columns of an orthonormal P that lasts for a window of steps: Subspace-MeZO, ZO-Muon, ZO-MOPI."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.engine.perturbations._bases import Factored, window
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.points import Layout, NoiseKey
from zo_sweeps_league.perturbations._bases import Bases, orthonormal


@dataclass(frozen=True)
class Projected(Factored):
    """Z = P u, P [m, r] with orthonormal columns and u [r, n] of N(0, 1), for a matrix; N(0, 1) for any other shape.

    P is uniform over such matrices and drawn once for `interval` steps, for all queries; u for each direction. A matrix
    with fewer than r rows has that many for r.

    Args:
        slip: what a released code does in the first step of a window. `zo_muon` (166a8f3): each query is evaluated
            along a P of its own, and the update uses the last one's for all. `zo_mopi` (2ba4f71): the update draws
            another u for query 0, and another z elsewhere, than its points had; that code also leaves the weights off
            by eps times the difference, at the points of the other queries and after the step, which is not done here.

    E[z z^T] = min(r, m) / m I over P and u, in matrices: eps and lr are those of the authors. Within a window the
    expected estimate is P P^T times the gradient. Cost: r n Gaussians and a thin product a direction; m r floats kept
    for a matrix. Source: the papers and released codes of ZO-Muon (with Subspace-MeZO) and ZO-MOPI, 2026.
    """

    rank: int = option(64, "r, the columns of P", least=1)
    interval: int = option(100, "steps that share P", least=1)
    slip: Literal["none", "zo_muon", "zo_mopi"] = option(
        "none", "what a release does when it draws P: none, zo_muon or zo_mopi"
    )
    _updates: bool = field(default=False, repr=False, kw_only=True, metadata={"option": False})
    _kept: Bases = field(default_factory=dict, repr=False, compare=False, kw_only=True, metadata={"option": False})
    _last: int = field(default=0, repr=False, kw_only=True, metadata={"option": False})

    def bind(self, layout: Layout) -> Projected:
        return replace(self, _kept={}, _last=layout.q - 1)

    def stepped(self) -> Projected:
        return self if self.slip == "none" else replace(self, _updates=True)

    def slips(self, key: NoiseKey) -> bool:
        first = window(key, self.interval).step == key.step
        return self.slip == "zo_mopi" and self._updates and first and key.query == 0

    def second_moment(self, shape: torch.Size) -> float:
        return min(self.rank, shape[0]) / shape[0] if len(shape) == 2 else 1.0

    def factors(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> tuple[Tensor, Tensor]:
        held, r = window(key, self.interval)._replace(query=0), min(self.rank, shape[0])
        if self.slip == "zo_muon":  # the window goes on with the P that its first step drew last
            held = held._replace(query=key.query if held.step == key.step and not self._updates else self._last)
        P = orthonormal(self._kept, held, f"{name}/P", shape[0], r, device)
        u = noise.gaussian(key, f"{name}/{'slip' if self.slips(key) else 'u'}", torch.Size((r, shape[1])), device)
        return P.clone(), u.T.contiguous()
