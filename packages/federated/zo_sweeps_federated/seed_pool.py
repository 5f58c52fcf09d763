"""Gaussian directions from a fixed pool of seeds: FedKSeed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import PartialPerturbation
from zo_sweeps.methods.points import NoiseKey


@dataclass(frozen=True)
class SeedPool(PartialPerturbation):
    """z = one of K Gaussian directions of the run, drawn uniformly and independently for each query.

    With a constant learning rate and plain SGD, theta_t = theta_0 - lr sum_j a_j z_j, in which a_j sums the weights of
    the queries that drew j: K numbers stand for any number of steps. Source: Qin et al. (FedKSeed), 2023, whose K is
    1,024 to 4,096; seed_pool_pro has its probabilities by earlier coefficients.
    """

    seeds: int = option(4096, "K, directions of the pool", least=1)

    def directions(self, d: int) -> int:
        return self.seeds

    def drawn(self, key: NoiseKey) -> NoiseKey:
        """Return the address of the direction that a query draws: of step 0, which is no run's."""
        return NoiseKey(key.seed, 0, self.word(key) * self.seeds >> 32)

    def word(self, key: NoiseKey) -> int:
        """Return the 32 random bits that decide which direction a query draws."""
        return int(noise.integers(key, "seed_pool", 1)[0]) & 0xFFFFFFFF

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        return noise.gaussian(self.drawn(key), name, shape, device)

    def combine(self, terms: noise.Terms, name: str, shape: torch.Size, device: torch.device, **into: Any) -> Tensor:
        drawn = [(self.drawn(key), weight) for key, weight in terms]
        return noise.combine(drawn, name, shape, device, **into)
