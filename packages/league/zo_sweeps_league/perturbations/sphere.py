"""z uniform on the sphere of radius sqrt(d), over the whole vector of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.engine.perturbations._bases import Whole
from zo_sweeps.methods.points import Layout, NoiseKey

KEPT = 1024  # norms: an update may draw the directions of several steps again, for one parameter after the other


@dataclass(frozen=True)
class Sphere(Whole):
    """z = sqrt(d) g / ||g||_2, g ~ N(0, I_d): the Gaussian direction at its mean length.

    E[z z^T] = I; E||ghat||^2 / ||grad f||^2 = d for one direction, since ||z||^2 = d. The norm is of all parameters
    together, and summed in fp64, so that the fp32 factor depends on neither order nor threads. Cost: twice the
    Gaussian's, the second time for the norm of each direction; those of the last KEPT are cached. Source: Liu et al.,
    A primer on zeroth-order optimization in signal processing and machine learning, 2020.
    """

    _factors: dict[tuple[NoiseKey, torch.device], Tensor] = field(
        default_factory=dict, repr=False, compare=False, kw_only=True, metadata={"option": False}
    )

    def bind(self, layout: Layout) -> Sphere:
        return replace(self, over=layout, _factors={})

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        return noise.gaussian(key, name, shape, device).mul_(self._factor(key, torch.device(device)))

    def _factor(self, key: NoiseKey, device: torch.device) -> Tensor:
        """Return sqrt(d) / ||g|| as a 0-d tensor on the device: no synchronization."""
        if (key, device) not in self._factors:
            while len(self._factors) >= KEPT:
                self._factors.pop(next(iter(self._factors)), None)
            total = torch.zeros((), dtype=torch.float64, device=device)
            for name, shape in self.layout.shapes.items():
                g = noise.gaussian(key, name, shape, device)
                total += torch.linalg.vector_norm(g, dtype=torch.float64).square()
            self._factors[key, device] = (math.sqrt(self.layout.d) / total.sqrt()).float()
        return self._factors[key, device]
