"""VeRA layers: one pair of frozen random factors shared by all layers; two vectors per layer are trained."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zo_sweeps.engine import linear, noise
from zo_sweeps.engine.layers.wrapped import INIT_STEP, PointLinear, Wrapped, grouped, ungrouped
from zo_sweeps.methods.points import NoiseKey


class VeraLinear(PointLinear):
    """A projection y = x W^T + bias + b * (d * (x A^T)) B^T: A [r, in], B [out, r] frozen, d [r], b [out] trained.

    All points share the products with A and B: one multiplication per row, whatever P is.
    """

    parts = ("d", "b")
    A: Tensor
    B: Tensor

    def __init__(self, base: nn.Module, A: Tensor, B: Tensor, d_initial: float) -> None:
        super().__init__(base)
        out, into = linear.shape(base)
        self.register_buffer("A", A[:, :into], persistent=False)
        self.register_buffer("B", B[:out], persistent=False)
        self.d = nn.Parameter(torch.full((A.shape[0],), d_initial, device=A.device))
        self.b = nn.Parameter(torch.zeros(out, device=A.device))

    def forward(self, x: Tensor) -> Tensor:
        d, b = self.held("d").to(x.dtype), self.held("b").to(x.dtype)
        h = grouped(F.linear(x, self.A), d.shape[0])
        y = F.linear(h * d.unsqueeze(1), self.B) * b.unsqueeze(1)
        base: Tensor = self.base(x)
        return base + ungrouped(y, x)


class Vera(Wrapped):
    """A space with a VeraLinear for each target Linear; layers use the leading part of A [r, in] and B [out, r].

    Memory of the frozen pair, in the weights' dtype: r (in + out) values, once.
    """

    def __init__(self, module: nn.Module, targets: list[str], rank: int, d_initial: float, seed: int) -> None:
        shapes = [linear.shape(module.get_submodule(name)) for name in targets]
        tall, wide = (max(sizes) for sizes in zip(*shapes, strict=True))
        like = linear.like(module.get_submodule(targets[0]))
        key = NoiseKey(seed, INIT_STEP, 0)

        def drawn(name: str, rows: int, columns: int) -> Tensor:
            bound = math.sqrt(6 / columns)  # Kaiming-uniform for a rectifier, as in peft
            u = noise.uniform(key, name, torch.Size((rows, columns)), like.device)
            return u.mul_(2 * bound).sub_(bound).to(like.dtype)

        self.A, self.B = drawn("vera.A", rank, wide), drawn("vera.B", tall, rank)
        super().__init__(module, targets, lambda base, name: VeraLinear(base, self.A, self.B, d_initial))
