"""All parameters of the model are trained: FT, MeZO's own setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.later import nn
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.space import Found, FullModel, InstalledSpace, Space


@dataclass(frozen=True)
class Full(Space):
    """d = every parameter, tied ones once, in the model's own dtype.

    One point per forward; several with directions in factors (`Perturbation.factored`).
    """

    batched: ClassVar[bool] = False
    moves_base: ClassVar[bool] = True

    def trainable(self, arch: Arch) -> int:
        return arch.parameters

    def install(self, module: nn.Module, layers: Sequence[str], seed: int, mask: Found | None = None) -> InstalledSpace:
        return FullModel(module)
