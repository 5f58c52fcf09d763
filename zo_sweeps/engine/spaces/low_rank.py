"""What LoRA and LoRA-FA share: a Linear with a low-rank term that can hold several points at once."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zo_sweeps.engine import noise
from zo_sweeps.engine.types import NoiseKey

INIT_STEP = -1  # the noise address of initial values: no training step has it


class LowRankLinear(nn.Module):
    """y = x W^T + b + (alpha / r) (x A^T) B^T, with W [out, in] frozen, A [r, in], B [out, r].

    Holding P points (`points` maps "A" or "B" to [P, ...] values), the rows of x are P equal groups and group p uses
    the p-th values, in one forward: the P-RGE loops. W is multiplied once, whatever P is.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float, train_A: bool, key: NoiseKey, name: str) -> None:
        super().__init__()
        self.base, self.scaling = base, alpha / rank
        weight = base.weight
        bound = 1 / math.sqrt(base.in_features)  # Kaiming-uniform with a = sqrt(5), as peft and the P-RGE code
        shape = torch.Size((rank, base.in_features))
        A = noise.uniform(key, f"{name}.A", shape, weight.device).mul_(2 * bound).sub_(bound)
        # What is trained is fp32 whatever the weights are; a frozen A is stored as it is used.
        if train_A:
            self.A = nn.Parameter(A)
        else:
            self.register_buffer("A", A.to(weight.dtype), persistent=False)
        self.B = nn.Parameter(torch.zeros(base.out_features, rank, device=weight.device))
        self.points: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x)
        A, B = self.points.get("A", self.A), self.points.get("B", self.B)
        A, B = A.to(x.dtype), B.to(x.dtype)
        if not self.points:
            return y + F.linear(F.linear(x, A), B).mul(self.scaling)
        P = B.shape[0]
        rows = x.reshape(P, -1, x.shape[-1])
        h = F.linear(rows, A) if A.dim() == 2 else torch.bmm(rows, A.transpose(1, 2))
        return y.view(P, -1, y.shape[-1]).baddbmm_(h, B.transpose(1, 2), alpha=self.scaling).view(y.shape)


class LowRank:
    """LowRankLinear in place of each target Linear. d = r (in + out) a layer for LoRA, r out for LoRA-FA."""

    batched = True

    def __init__(
        self, module: nn.Module, targets: Iterable[str], rank: int, alpha: float, train_A: bool, seed: int
    ) -> None:
        self._module = module
        self._layers: dict[str, LowRankLinear] = {}
        self.params: dict[str, nn.Parameter] = {}
        key = NoiseKey(seed, INIT_STEP, 0)
        for name in targets:
            base = module.get_submodule(name)
            assert isinstance(base, nn.Linear), f"{name} is a {type(base).__name__}, not a Linear"
            layer = LowRankLinear(base, rank, alpha, train_A, key, name)
            self._layers[name] = layer
            _replace(module, name, layer)
            if train_A:
                self.params[f"{name}.A"] = layer.A
            self.params[f"{name}.B"] = layer.B

    def hold(self, values: dict[str, Tensor]) -> None:
        """Lets the layers hold P points: `values` maps parameter names to [P, *shape]. Empty: theta itself."""
        for name, layer in self._layers.items():
            layer.points = {part: values[f"{name}.{part}"] for part in ("A", "B") if f"{name}.{part}" in values}

    def uninstall(self) -> None:
        for name, layer in self._layers.items():
            _replace(self._module, name, layer.base)


def _replace(module: nn.Module, name: str, child: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(parent), leaf, child)
