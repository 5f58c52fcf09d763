"""The same numbers for all parameters: ES at Scale as released."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey


@dataclass(frozen=True)
class OneStream(Perturbation):
    """z of N(0, 1), the same stream of numbers from its start in every parameter.

    ES at Scale's workers (574a9d1) seed the generator again for every parameter, which does this: the search runs in a
    space of as many dimensions as the largest parameter has. Gaussian is what its paper describes. E[z_j^2] = 1, and
    E[z z^T] = 1 between elements of one index in two flattened parameters. Source: Qiu et al., Evolution strategies at
    scale: LLM fine-tuning beyond reinforcement learning, 2025, its released code.
    """

    def second_moment(self, shape: torch.Size) -> None:
        return None  # elements of two parameters are equal

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        return noise.gaussian(key, "", shape, device)
