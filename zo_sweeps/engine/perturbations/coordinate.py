"""z = sqrt(d) e_j: one coordinate at a time, for the estimator `cge`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.later import Tensor, torch
from zo_sweeps.engine.perturbations._bases import Whole
from zo_sweeps.methods.points import NoiseKey


@dataclass(frozen=True)
class Coordinate(Whole):
    """z(step, query) = sqrt(d) e_j, j = ((step - 1) q + query) mod d, over the vector of all parameters.

    Not random: the mean of z z^T over any d consecutive directions is I, so that q = d directions give the gradient,
    and fewer pass through the coordinates cyclically. Cost: one write over the space per direction.
    """

    coordinates: ClassVar[bool] = True

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        z = torch.zeros(shape, device=device)
        place = self.layout.drawn_before(key) % self.layout.d - self.layout.offsets[name]
        if 0 <= place < shape.numel():
            z.view(-1)[place] = math.sqrt(self.layout.d)
        return z
