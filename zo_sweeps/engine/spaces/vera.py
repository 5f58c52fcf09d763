"""VeRA: one pair of random factors, frozen and shared by all layers; two vectors per layer are trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.engine.later import low_rank, nn
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.space import AdapterFormat, Found, InstalledSpace, LayerSpace


@dataclass(frozen=True)
class VeRA(LayerSpace):
    """d = `d_initial`, b = 0, trained in fp32: r + out values per layer.

    Args:
        rank: r of the frozen factors A [r, in] and B [out, r], of which each layer uses the leading part.

    Source: VeRA (Kopiczko et al., 2024), eq. 2; P-RGE Table 6.
    """

    adapter: ClassVar[AdapterFormat | None] = AdapterFormat(
        "VERA", {"d": "vera_lambda_d", "b": "vera_lambda_b"}, {"A": "base_model.vera_A", "B": "base_model.vera_B"}
    )

    rank: int = option(1024, "r of the shared factors", least=1)
    d_initial: float = option(0.1, "initial value of the vector d")

    def adapter_options(self) -> dict[str, Any]:
        drawn = {"d_initial": self.d_initial, "save_projection": True, "projection_prng_key": 0}
        return {"r": self.rank, "vera_dropout": 0.0, **drawn}

    def trainable(self, arch: Arch) -> int:
        return arch.outputs(self.targets) + self.rank * arch.layers * len(arch.roles(self.targets))

    def frozen_values(self, arch: Arch) -> int:
        sizes = [arch.linears[role] for role in arch.roles(self.targets)]
        out, into = (max(size[side] for size in sizes) for side in (0, 1))
        return self.rank * (out + into)  # A and B

    def install(self, module: nn.Module, layers: Sequence[str], seed: int, mask: Found | None = None) -> InstalledSpace:
        return low_rank.Vera(module, list(layers), self.rank, self.d_initial, seed)
