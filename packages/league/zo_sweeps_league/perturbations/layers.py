"""z on a few layers of the model, other ones at each step: LeZO."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.engine.perturbations._bases import Whole
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.points import NoiseKey

LAYER = re.compile(r"(?:^|\.)(\d+)\.")


@dataclass(frozen=True)
class Layers(Whole):
    """z is N(0, 1) in the parameters of the layers that a direction keeps, and 0 in those of the others.

    Of L layers, max(1, round((1 - dropped) L)) are drawn without replacement for each direction (dropped: LeZO's rho;
    0: MeZO). A layer is what shares the first whole number in a parameter's name ("model.layers.3."); parameters
    without one are always kept.

    E[z z^T] is the share of kept layers in their parameters and 1 in the others, and so is the estimate's mean, over
    the gradient. Cost: the noise of the layers that are kept, and zeros for the rest; as many forwards as MeZO. Source:
    Wang et al., Simultaneous computation and memory efficient zeroth-order optimizer for fine-tuning large language
    models (LeZO), 2024.
    """

    dropped: float = option(0.75, "share of the layers that a direction leaves out", least=0, most=1)

    def second_moment(self, shape: torch.Size) -> None:
        return None  # it depends on the parameter's layer

    @cached_property
    def _layers(self) -> dict[str, int]:
        """Parameter -> its layer, those that have one; layers count from 0, in the model's order."""
        found = {name: int(match[1]) for name in self.layout.shapes if (match := LAYER.search(name))}
        places = {number: place for place, number in enumerate(sorted({*found.values()}))}
        return {name: places[number] for name, number in found.items()}

    def kept(self, key: NoiseKey) -> set[int]:
        """Return the layers that the direction keeps: those with the smallest addressed integers."""
        count = len({*self._layers.values()})
        drawn: list[int] = noise.integers(key, "layers", count, torch.device("cpu")).tolist()
        return {*sorted(range(count), key=drawn.__getitem__)[: max(1, round((1 - self.dropped) * count))]}

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        layer = self._layers.get(name)
        if layer is not None and layer not in self.kept(key):
            return torch.zeros(shape, device=device)
        return noise.gaussian(key, name, shape, device)
