"""Low-rank Linear shared by LoRA and LoRA-FA, and extended by DoRA."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zo_sweeps.engine import linear, noise
from zo_sweeps.engine.layers.wrapped import PointLinear, grouped, ungrouped
from zo_sweeps.methods.points import NoiseKey


class LowRankLinear(PointLinear):
    """A projection y = x W^T + b + (alpha / r) (x A^T) B^T, W [out, in] frozen, A [r, in], B [out, r]."""

    def __init__(
        self, base: nn.Module, rank: int, alpha: float, init: str, train_A: bool, key: NoiseKey, name: str
    ) -> None:
        super().__init__(base)
        self.parts = ("A", "B") if train_A else ("B",)
        self.scaling = alpha / rank
        (out, into), like = linear.shape(base), linear.like(base)
        shape = torch.Size((rank, into))
        if init == "gaussian":
            A = noise.gaussian(key, f"{name}.A", shape, like.device).mul_(1 / rank)
        else:
            bound = 1 / math.sqrt(into)  # Kaiming-uniform with a = sqrt(5), as in peft and the P-RGE code
            A = noise.uniform(key, f"{name}.A", shape, like.device).mul_(2 * bound).sub_(bound)
        # Trained factors are fp32 whatever the weights' dtype; a frozen A is stored in the dtype of its use.
        if train_A:
            self.A = nn.Parameter(A)
        else:
            self.register_buffer("A", A.to(like.dtype), persistent=False)
        self.B = nn.Parameter(torch.zeros(out, rank, device=like.device))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        A, B = self.points.get("A", self.A), self.points.get("B", self.B)
        A, B = A.to(x.dtype), B.to(x.dtype)
        if not self.points:
            return y + F.linear(F.linear(x, A), B).mul(self.scaling)
        P = B.shape[0]
        h = grouped(F.linear(x, A), P) if A.dim() == 2 else torch.bmm(grouped(x, P), A.transpose(1, 2))
        return ungrouped(grouped(y, P).baddbmm_(h, B.transpose(1, 2), alpha=self.scaling), x)
