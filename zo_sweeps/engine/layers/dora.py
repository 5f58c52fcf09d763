"""DoRA layers: LoRA trains the weight's direction; row magnitudes are trained separately."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zo_sweeps.engine import linear
from zo_sweeps.engine.layers.low_rank import LowRankLinear
from zo_sweeps.engine.layers.wrapped import grouped, ungrouped
from zo_sweeps.methods.points import NoiseKey


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
