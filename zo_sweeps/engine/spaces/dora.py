"""DoRA: LoRA trains the weight's direction; row magnitudes are trained separately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.space import AdapterFormat, Found, InstalledSpace, LowRankSpace

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class DoRA(LowRankSpace):
    """A ~ Kaiming-uniform (or Gaussian), B = 0, m = ||W||, all trained in fp32: d = r (in + out) + out per layer.

    Args:
        rank: r of the factors A [r, in] and B [out, r].
        alpha: the low-rank term is multiplied by alpha / r.
        targets: roles of the layers to adapt.
        init: distribution of A at the start.

    Source: DoRA (Liu et al., 2024), eq. 5; P-RGE Table 6.
    """

    multiplies_others: ClassVar[bool] = True
    starts_computed: ClassVar[bool] = True
    adapter: ClassVar[AdapterFormat | None] = AdapterFormat(
        "LORA", {"A": "lora_A.weight", "B": "lora_B.weight", "m": "lora_magnitude_vector"}
    )

    def adapter_options(self) -> dict[str, Any]:
        return {**super().adapter_options(), "use_dora": True}

    def trainable(self, arch: Arch) -> int:
        return self.rank * (arch.inputs(self.targets) + arch.outputs(self.targets)) + arch.outputs(self.targets)

    def install(self, module: nn.Module, layers: Sequence[str], seed: int, mask: Found | None = None) -> InstalledSpace:
        from zo_sweeps.engine.layers.low_rank import DoraLinear, Wrapped, initial_key

        key, rank, alpha, init = initial_key(seed), self.rank, self.alpha, self.init
        return Wrapped(module, layers, lambda base, name: DoraLinear(base, rank, alpha, init, key, name))
