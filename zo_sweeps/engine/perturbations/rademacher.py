"""z_j = +1 or -1: SPSA's classical choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.methods.perturbation import PartialPerturbation
from zo_sweeps.methods.points import NoiseKey


@dataclass(frozen=True)
class Rademacher(PartialPerturbation):
    """z_j = 2 bit - 1 with bit j mod 32 (lowest first) of word j // 32: bit-identical on every device.

    E[z z^T] = I and ||z||^2 = d exactly, so that E||ghat||^2 / ||grad f||^2 = d for one direction, the minimum over
    distributions with independent elements. Cost: one hashed word per 32 elements, and a pass over the memory of what
    it is added to. Source: Spall, Multivariate stochastic approximation using a simultaneous perturbation gradient
    approximation, 1992; PeZO Table 3 lists it as a baseline that fails to train.
    """

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        return noise.signs(key, name, shape, device)

    def combine(self, terms: noise.Terms, name: str, shape: torch.Size, device: torch.device, **into: Any) -> Tensor:
        return noise.combine(terms, name, shape, device, **into, of_signs=True)
