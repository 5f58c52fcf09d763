"""z ~ N(0, I_d): MeZO, P-RGE and sensitive sparse ZO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.methods.perturbation import PartialPerturbation
from zo_sweeps.methods.points import NoiseKey


@dataclass(frozen=True)
class Gaussian(PartialPerturbation):
    """E[z z^T] = I; E||ghat||^2 / ||grad f||^2 = d + 2 for one direction."""

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        return noise.gaussian(key, name, shape, device)

    def samples(self, keys: Sequence[NoiseKey], name: str, shape: torch.Size, device: torch.device) -> Tensor:
        return noise.each([(key, name) for key in keys], shape, device)

    def combine(self, terms: noise.Terms, name: str, shape: torch.Size, device: torch.device, **into: Any) -> Tensor:
        return noise.combine(terms, name, shape, device, **into)
