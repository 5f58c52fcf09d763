"""DoRA: LoRA trains the weight's direction; row magnitudes are trained separately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.engine.later import low_rank
from zo_sweeps.engine.spaces.lora import LoRA
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.space import AdapterFormat


@dataclass(frozen=True)
class DoRA(LoRA):
    """A ~ Kaiming-uniform (or Gaussian), B = 0, m = ||W||, all trained in fp32: d = r (in + out) + out per layer.

    Source: DoRA (Liu et al., 2024), eq. 5; P-RGE Table 6.
    """

    multiplies_others: ClassVar[bool] = True
    starts_computed: ClassVar[bool] = True
    adapter: ClassVar[AdapterFormat | None] = AdapterFormat(
        "LORA", {"A": "lora_A.weight", "B": "lora_B.weight", "m": "lora_magnitude_vector"}
    )

    def adapter_options(self) -> dict[str, Any]:
        return {**super().adapter_options(), "use_dora": True}

    @property
    def linear(self) -> type[low_rank.DoraLinear]:
        return low_rank.DoraLinear

    def trainable(self, arch: Arch) -> int:
        return super().trainable(arch) + arch.outputs(self.targets)
