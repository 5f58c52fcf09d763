"""Linears that hold several points: LoRA and LoRA-FA, DoRA (row magnitudes trained apart), VeRA (shared factors)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zo_sweeps.core.memory_parts import Part
from zo_sweeps.engine import linear, noise
from zo_sweeps.engine.rows import grouped, ungrouped
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import InstalledSpace

INIT_STEP = -1  # noise address of initial values; no training step uses it


def initial_key(seed: int) -> NoiseKey:
    """Return the noise address of a run's initial values."""
    return NoiseKey(seed, INIT_STEP, 0)


class PointLinear(nn.Module):
    """A frozen Linear (or Conv1D) with trained parts that can hold P points.

    `points` maps a part to [P, ...] values; the rows of x are then P groups (`engine.rows`) and group p uses the p-th
    values, in one forward: the P-RGE loops. Empty: theta itself. W is multiplied once, whatever P is.
    """

    parts: tuple[str, ...] = ()  # attribute names of the trained parts

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base: Any = base
        self.points: dict[str, Tensor] = {}

    def held(self, part: str) -> Tensor:
        """Return the values of a part, [P, *shape]; P = 1 for theta."""
        return self.points[part] if part in self.points else getattr(self, part).unsqueeze(0)


class Wrapped(InstalledSpace):
    """A space with `wrap(base, name)` in place of each target Linear; the trained parameters are its parts, in fp32."""

    batched = True

    def __init__(
        self, module: nn.Module, targets: Iterable[str], wrap: Callable[[nn.Module, str], PointLinear]
    ) -> None:
        self._module = module
        self.layers: dict[str, PointLinear] = {}
        self.params: dict[str, nn.Parameter] = {}
        for name in targets:
            base = module.get_submodule(name)
            linear.check(base, name)
            layer = wrap(base, name)
            self.layers[name] = layer
            module.set_submodule(name, layer)
            self.params.update({f"{name}.{part}": getattr(layer, part) for part in layer.parts})

    def hold(self, values: Mapping[str, Tensor]) -> None:
        for name, layer in self.layers.items():
            layer.points = {part: values[f"{name}.{part}"] for part in layer.parts if f"{name}.{part}" in values}

    def tensors(self) -> Iterator[tuple[Part, Tensor]]:
        yield from super().tensors()
        for layer in self.layers.values():  # frozen factors
            yield from ((Part.TRAINABLE, buffer) for buffer in layer.buffers(recurse=False))

    def uninstall(self) -> None:
        for name, layer in self.layers.items():
            self._module.set_submodule(name, layer.base)


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
        A, B = self.points.get("A", self.A).to(x.dtype), self.points.get("B", self.B).to(x.dtype)
        if not self.points:
            return y + F.linear(F.linear(x, A), B).mul(self.scaling)
        P = B.shape[0]
        h = grouped(F.linear(x, A), P) if A.dim() == 2 else torch.bmm(grouped(x, P), A.transpose(1, 2))
        h, B = h.to(y.dtype), B.to(y.dtype)  # which autocast may have chosen
        return ungrouped(grouped(y, P).baddbmm_(h, B.transpose(1, 2), alpha=self.scaling), x)


class DoraLinear(LowRankLinear):
    """y = b + m / ||W + s B A|| * (x W^T + s (x A^T) B^T), with s = alpha / r, m [out], norm per row.

    Backpropagation treats the norm as a constant, as in the paper (section 4.3) and in peft. It is computed without the
    merged weight:

        ||W + s B A||^2 = ||W||^2 + 2 s <B, W A^T> + s^2 <B, B A A^T>     (row by row)

    Cost beyond LoRA's: P r more rows through W. Memory: [out, r] per point.
    """

    square: Tensor

    def __init__(
        self, base: nn.Module, rank: int, alpha: float, init: str, train_A: bool, key: NoiseKey, name: str
    ) -> None:
        super().__init__(base, rank, alpha, init, train_A, key, name)
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
        """Return ||W + s B A|| per row, above 0, [P, out] fp32; `product` is A W^T, [P, r, out]."""
        cross = product.float().transpose(1, 2)
        A, B, s = A.float(), B.float(), self.scaling
        inner = (2 * s * cross + s * s * (B @ (A @ A.transpose(1, 2)))) * B
        square = self.square + inner.sum(-1)
        return square.clamp_(min=torch.finfo(square.dtype).tiny).sqrt_()  # a row of zeros has no direction: it gives 0


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
        h = grouped(F.linear(x, self.A.to(x.dtype)), d.shape[0])
        y = F.linear(h * d.unsqueeze(1), self.B.to(x.dtype)) * b.unsqueeze(1)
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
