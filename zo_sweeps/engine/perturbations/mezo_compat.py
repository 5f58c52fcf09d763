"""MeZO's own stream of noise, for runs that must have the bits of its released code."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from zo_sweeps.engine.types import Layout, NoiseKey


class MezoCompat:
    """z ~ N(0, I_d), drawn a parameter at a time by `torch.normal` from a generator that a seed of each query starts.

    The seeds are successive `randint(10^9)` of numpy's RandomState(seed): those of MeZO's code after `np.random.seed`.
    A direction is a stream, so parameters are drawn in the space's order; out of order costs the ones before it too.
    The bits depend on the device and on torch's generator. Use Gaussian for anything but comparing with MeZO. Source:
    MeZO, Algorithm 1, as its released code (large models) draws.
    """

    def __init__(self, layout: Layout | None = None) -> None:
        self._layout = layout
        self._at: tuple[NoiseKey, int, torch.device] | None = None  # what the generator would draw next
        self._generator = torch.Generator()

    def bind(self, layout: Layout) -> MezoCompat:
        return MezoCompat(layout)

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        assert self._layout is not None, "bind the perturbation to the layout of its space first"
        names = list(self._layout.shapes)
        index = names.index(name)
        start = index
        if self._at != (key, index, device):
            self._generator = torch.Generator(device).manual_seed(_seed(key.seed, self._layout.drawn_before(key)))
            start = 0
        for before in names[start:index]:
            torch.normal(0.0, 1.0, self._layout.shapes[before], generator=self._generator, device=device)
        self._at = (key, index + 1, device)
        return torch.normal(0.0, 1.0, shape, generator=self._generator, device=device)


def _seed(seed: int, number: int) -> int:
    return int(_seeds(seed, number // 4096)[number % 4096])


@lru_cache(maxsize=16)
def _seeds(seed: int, block: int) -> np.ndarray:
    """The draws 4096 * block ... of the stream."""
    return np.random.RandomState(seed).randint(1_000_000_000, size=4096 * (block + 1))[4096 * block :]
