"""z from the best direction so far and a new one: MeZO-GV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.methods.definition import bound, option
from zo_sweeps.methods.estimator import SCOUTS
from zo_sweeps.methods.perturbation import Params, Perturbation, Reads, State
from zo_sweeps.methods.points import Estimate, Layout, NoiseKey


@dataclass(frozen=True)
class Guided(Perturbation):
    """z_i = (a_i - b_i) / sqrt(2), a_i the best direction that query i has met and b_i a new one, both of N(0, I).

    a_i and b_i are the scouts of estimator rge_guided; the one with the lower loss is the next step's a_i.

    Args:
        slip: whether z_i is computed as in the released code (70a2551), which seeds its generator again for every
            parameter: all have the numbers of the first, from its start, and from the second on z_i is not the
            difference of the directions that were evaluated.

    E[z z^T] = I over a new pair; the release does not divide by sqrt(2), so its lr is half of this one. State: the
    addresses of the best directions. Cost: two noise passes a direction. Source: MeZO-GV, 2025.
    """

    reads: ClassVar[Reads] = Reads.LOG
    needs: ClassVar[str] = SCOUTS

    slip: bool = option(False, "z as released: the first parameter's numbers in all")
    q: int = bound()
    first: str = bound()
    best: Mapping[int, NoiseKey] | None = bound()

    def bind(self, layout: Layout) -> Guided:
        return replace(self, q=layout.q, first=next(iter(layout.shapes)), best=None)

    def init(self, params: Params) -> State:
        return {"best": {}}

    def at(self, params: Params, state: State, step: int) -> Guided:
        return replace(self, best=state["best"])

    def second_moment(self, shape: torch.Size) -> float | None:
        return None if self.slip else 1.0

    def observe(self, params: Params, estimate: Estimate, state: State) -> State:
        best = dict(state["best"])
        for key, _ in estimate.terms:
            new = key._replace(query=self.q + 2 * key.query + 1)
            if estimate.coefs[self.q + key.query] > 0:
                best[key.query] = new
            else:
                best.setdefault(key.query, new._replace(query=new.query - 1))
        return {"best": best}

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        if key.query < self.q:
            scout = key._replace(query=self.q + 2 * key.query)
            pair = self._scout(scout), self._scout(scout._replace(query=scout.query + 1))
            place = self.first if self.slip else name
            a, b = (noise.gaussian(one, place, shape, device) for one in pair)
            return a.sub_(b).mul_(0.5**0.5)
        return noise.gaussian(self._scout(key), name, shape, device)

    def _scout(self, key: NoiseKey) -> NoiseKey:
        """Return the address of a scout's direction: of the first of a pair, the best so far."""
        query, second = divmod(key.query - self.q, 2)
        return key if second or self.best is None else self.best.get(query, key)
