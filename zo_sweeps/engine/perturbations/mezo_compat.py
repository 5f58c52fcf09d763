"""MeZO's own noise stream, for runs that must be bit-identical to its released code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zo_sweeps.methods.definition import bound
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Layout, NoiseKey

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from zo_sweeps.engine.mezo_stream import Stream


@dataclass(frozen=True)
class MezoCompat(Perturbation):
    """z ~ N(0, I_d), drawn one parameter at a time by `torch.normal` from a generator seeded for each query.

    A parameter's numbers are drawn in its own dtype: in fp16 and bf16 they are other, and coarser, ones. The seeds are
    successive `randint(10^9)` of numpy's RandomState(seed), as in MeZO's code after `np.random.seed`. A direction is a
    stream, so parameters are drawn in the space's order; out of order, the preceding ones are drawn too. The bits
    depend on the device and on torch's generator. Use Gaussian for everything but comparisons with MeZO.
    Source: MeZO, Algorithm 1, as drawn by its released code (large models).
    """

    stream: Stream | None = bound()

    def bind(self, layout: Layout) -> MezoCompat:
        from zo_sweeps.engine.mezo_stream import Stream

        return replace(self, stream=Stream(layout))

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        assert self.stream is not None, "bind the perturbation to the layout of its space first"
        return self.stream.draw(key, name, shape, device)
