"""z ~ N(0, I_d): MeZO, P-RGE and sensitive sparse ZO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Gaussian(Perturbation):
    """E[z z^T] = I; E||ghat||^2 / ||grad f||^2 = d + 2 for one direction."""

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        from zo_sweeps.engine import noise

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
        from zo_sweeps.engine import noise

        return noise.combine(terms, name, shape, device, base=base, out=out, start=start)
