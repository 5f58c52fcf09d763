"""z ~ N(0, I_d): MeZO, P-RGE and sensitive sparse ZO."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zo_sweeps.engine import noise
from zo_sweeps.engine.types import Layout, NoiseKey


class Gaussian:
    """E[z z^T] = I; E||ghat||^2 / ||grad f||^2 = d + 2 for one direction."""

    def bind(self, layout: Layout) -> Gaussian:
        return self

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        return noise.gaussian(key, name, shape, device)

    def combine(
        self,
        terms: Sequence[tuple[NoiseKey, float]],
        name: str,
        shape: torch.Size,
        device: torch.device,
        *,
        base: Tensor | None = None,
        out: Tensor | None = None,
        start: int = 0,
    ) -> Tensor:
        return noise.combine(terms, name, shape, device, base=base, out=out, start=start)
