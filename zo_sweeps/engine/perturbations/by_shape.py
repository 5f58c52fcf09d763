"""The same z for all parameters of a shape: ES at Scale as released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class ByShape(Perturbation):
    """z of N(0, 1), drawn once for each shape: parameters of one shape all move by the same values.

    ES at Scale's workers (574a9d1) seed the generator again for every parameter, which does this: the search runs in a
    space as many times smaller as the model has layers. Gaussian is what its paper describes.

    E[z_j^2] = 1, and E[z z^T] = 1 between the same elements of parameters of one shape. Source: Qiu et al., Evolution
    strategies at scale: LLM fine-tuning beyond reinforcement learning, 2025, its released code.
    """

    def second_moment(self, shape: torch.Size) -> None:
        return None  # elements of two parameters are equal

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        from zo_sweeps.engine import noise

        return noise.gaussian(key, "/".join(map(str, shape)), shape, device)
