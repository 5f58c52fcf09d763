"""MeZO's own noise stream, for runs that must be bit-identical to its released code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from zo_sweeps.engine.later import Tensor, torch
from zo_sweeps.methods.definition import bound
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Layout, NoiseKey

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class MezoCompat(Perturbation):
    """z ~ N(0, I_d), drawn one parameter at a time by `torch.normal` from a generator seeded for each query.

    A parameter's numbers are drawn in its own dtype: in fp16 and bf16 they are other, and coarser, ones. The seeds are
    successive `randint(10^9)` of numpy's RandomState(seed), as in MeZO's code after `np.random.seed`. A direction is a
    stream, so parameters are drawn in the space's order; out of order, the preceding ones are drawn too. The bits
    depend on the device and on torch's generator. Use Gaussian for everything but comparisons with MeZO.
    Source: MeZO, Algorithm 1, as drawn by its released code (large models).
    """

    stream: _Stream | None = bound()

    def bind(self, layout: Layout) -> MezoCompat:
        return replace(self, stream=_Stream(layout))

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        assert self.stream is not None, "bind the perturbation to the layout of its space first"
        return self.stream.draw(key, name, device)


class _Stream:
    """A generator that draws z one parameter at a time, in the space's order."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._at: tuple[NoiseKey, int, torch.device] | None = None  # the generator's next draw
        self._generator: torch.Generator | None = None

    def draw(self, key: NoiseKey, name: str, device: torch.device) -> Tensor:
        """Return one parameter's part of z(key), drawn in its dtype, as fp32.

        Out of order, the preceding parameters are drawn too.
        """
        shapes, dtypes = self._layout.shapes, self._layout.dtypes
        names = list(shapes)
        index = names.index(name)
        start = index
        if self._at != (key, index, device):
            block, place = divmod(self._layout.drawn_before(key), 4096)
            self._generator = torch.Generator(device).manual_seed(int(_seeds(key.seed, block)[place]))
            start = 0
        for drawn in names[start : index + 1]:
            dtype = dtypes.get(drawn, torch.float32)
            z = torch.normal(0.0, 1.0, shapes[drawn], generator=self._generator, dtype=dtype, device=device)
        self._at = (key, index + 1, device)
        return z.float()


@lru_cache(maxsize=16)
def _seeds(seed: int, block: int) -> np.ndarray:
    """Return the draws 4096 * block ... 4096 * (block + 1) - 1 of the stream."""
    import numpy as np

    return np.random.RandomState(seed).randint(1_000_000_000, size=4096 * (block + 1))[4096 * block :]
