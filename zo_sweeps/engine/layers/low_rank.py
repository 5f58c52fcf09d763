"""Linears with a low-rank term: LoRA and LoRA-FA, DoRA (row magnitudes trained apart), VeRA (shared frozen factors)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zo_sweeps.engine import linear, noise
from zo_sweeps.engine.layers.wrapped import PointLinear, Wrapped, initial_key
from zo_sweeps.engine.rows import grouped, ungrouped
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


class DoraLinear(LowRankLinear):
    """y = b + m / ||W + s B A|| * (x W^T + s (x A^T) B^T), with s = alpha / r, m [out], norm per row.

    Backpropagation treats the norm as a constant, as in the paper (section 4.3) and in peft. It is computed without the
    merged weight:

        ||W + s B A||^2 = ||W||^2 + 2 s <B, W A^T> + s^2 <B, B A A^T>     (row by row)

    Cost beyond LoRA's: P r more rows through W. Memory: [out, r] per point.
    """

    square: Tensor

    def __init__(self, base: nn.Module, rank: int, alpha: float, init: str, key: NoiseKey, name: str) -> None:
        super().__init__(base, rank, alpha, init, True, key, name)
        self.parts = ("A", "B", "m")
        norms = [torch.linalg.vector_norm(rows, dim=1, dtype=torch.float32) for rows in linear.parts(base)]
        square = torch.cat(norms).square()
        self.register_buffer("square", square, persistent=False)  # ||W||^2
        self.m = nn.Parameter(square.sqrt())

    def forward(self, x: Tensor) -> Tensor:
        A, B, m = self.held("A").to(x.dtype), self.held("B").to(x.dtype), self.held("m")
        P = B.shape[0]
        y, cross = linear.products(self.base, linear.inputs(self.base, x), A.detach())
        h = torch.bmm(grouped(x, P), A.transpose(1, 2))
        y = torch.baddbmm(grouped(y, P), h, B.transpose(1, 2), alpha=self.scaling)
        y = y * (m / self._norm(A, B, cross)).unsqueeze(1).to(x.dtype)
        if self.base.bias is not None:
            y = y + self.base.bias
        return ungrouped(y, x)

    @torch.no_grad()
    def _norm(self, A: Tensor, B: Tensor, product: Tensor) -> Tensor:
        """Return ||W + s B A|| per row, [P, out] fp32; `product` is A W^T, [P, r, out]."""
        cross = product.float().transpose(1, 2)
        A, B, s = A.float(), B.float(), self.scaling
        inner = (2 * s * cross + s * s * (B @ (A @ A.transpose(1, 2)))) * B
        square = self.square + inner.sum(-1)
        return square.clamp_(min=0).sqrt_()


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

        def drawn(name: str, rows: int, columns: int) -> Tensor:
            bound = math.sqrt(6 / columns)  # Kaiming-uniform for a rectifier, as in peft
            u = noise.uniform(initial_key(seed), name, torch.Size((rows, columns)), like.device)
            return u.mul_(2 * bound).sub_(bound).to(like.dtype)

        self.A, self.B = drawn("vera.A", rank, wide), drawn("vera.B", tall, rank)
        super().__init__(module, targets, lambda base, name: VeraLinear(base, self.A, self.B, d_initial))
