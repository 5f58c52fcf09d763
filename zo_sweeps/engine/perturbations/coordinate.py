"""z = sqrt(d) e_j: one coordinate after the other, for the estimator `cge`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zo_sweeps.engine.types import Layout, NoiseKey


@dataclass(frozen=True)
class Coordinate:
    """z(step, query) = sqrt(d) e_j, j = ((step - 1) q + query) mod d, over the vector of all parameters.

    Not random: z z^T is I in the mean over any d directions in a row, so that q = d directions give the gradient and
    fewer walk through the coordinates cyclically. Cost: one write over the space a direction.
    """

    layout: Layout | None = None

    def bind(self, layout: Layout) -> Coordinate:
        return replace(self, layout=layout)

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        assert self.layout is not None, "bind the perturbation to the parameters first"
        z = torch.zeros(shape, device=device)
        place = self.layout.drawn_before(key) % self.layout.d - self.layout.offsets[name]
        if 0 <= place < shape.numel():
            z.view(-1)[place] = math.sqrt(self.layout.d)
        return z
