"""The noise stream of MeZO's released code, as tensors; the perturbation is `perturbations/mezo_compat.py`."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from zo_sweeps.methods.points import Layout, NoiseKey


class Stream:
    """A generator that draws z one parameter at a time, in the space's order; see `MezoCompat`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._at: tuple[NoiseKey, int, torch.device] | None = None  # the generator's next draw
        self._generator = torch.Generator()

    def draw(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        """Return one parameter's part of z(key), drawn in its dtype, as fp32.

        Out of order, the preceding parameters are drawn too.
        """
        shapes, dtypes = self._layout.shapes, self._layout.dtypes
        names = list(shapes)
        index = names.index(name)
        start = index
        if self._at != (key, index, device):
            self._generator = torch.Generator(device).manual_seed(_seed(key.seed, self._layout.drawn_before(key)))
            start = 0
        for drawn in names[start : index + 1]:
            dtype = dtypes.get(drawn, torch.float32)
            z = torch.normal(0.0, 1.0, shapes[drawn], generator=self._generator, dtype=dtype, device=device)
        self._at = (key, index + 1, device)
        return z.float()


def _seed(seed: int, number: int) -> int:
    return int(_seeds(seed, number // 4096)[number % 4096])


@lru_cache(maxsize=16)
def _seeds(seed: int, block: int) -> np.ndarray:
    """Return the draws 4096 * block ... 4096 * (block + 1) - 1 of the stream."""
    return np.random.RandomState(seed).randint(1_000_000_000, size=4096 * (block + 1))[4096 * block :]
