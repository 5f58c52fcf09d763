"""Bases of members: directions over the whole vector; directions in factors, some of which are held for a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zo_sweeps.engine.later import Tensor, noise, torch
from zo_sweeps.methods.definition import bound
from zo_sweeps.methods.perturbation import FactoredPerturbation, Perturbation
from zo_sweeps.methods.points import Layout, NoiseKey


@dataclass(frozen=True)
class Whole(Perturbation):
    """A distribution over the vector of all parameters, not of one parameter at a time."""

    over: Layout | None = bound()

    def bind(self, layout: Layout) -> Perturbation:
        return replace(self, over=layout)

    @property
    def layout(self) -> Layout:
        assert self.over is not None, "bind the perturbation to the parameters first"
        return self.over


@dataclass(frozen=True)
class Factored(FactoredPerturbation):
    """Z = U V^T of `factors` for a matrix, N(0, 1) for any other shape."""

    def slips(self, key: NoiseKey) -> bool:
        """Tell whether these are an update's directions, which a release draws otherwise than its points had them."""
        return False

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        if len(shape) != 2:
            return self.samples([key], name, shape, device)[0]
        U, V = self.factors(key, name, shape, device)
        return U @ V.T

    def samples(self, keys: Sequence[NoiseKey], name: str, shape: torch.Size, device: torch.device) -> Tensor:
        if len(shape) == 2:
            return super().samples(keys, name, shape, device)
        return noise.each([(key, f"{name}/slip" if self.slips(key) else name) for key in keys], shape, device)


def window(key: NoiseKey, interval: int) -> NoiseKey:
    """Return the address of what is drawn once for steps 1 .. interval, then interval + 1 .. 2 interval, ...."""
    return key._replace(step=key.step - (key.step - 1) % interval)
