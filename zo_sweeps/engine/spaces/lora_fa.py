"""LoRA-FA: A is drawn once and frozen, B is trained. The space of P-RGE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.engine.spaces.lora import LoRA
from zo_sweeps.methods.arch import Arch


@dataclass(frozen=True)
class LoRAFA(LoRA):
    """A ~ Kaiming-uniform (or Gaussian), frozen; B = 0, trained in fp32: d = r out per layer.

    Source: P-RGE, section 2 and appendix A.4.
    """

    trains_both: ClassVar[bool] = False

    def trainable(self, arch: Arch) -> int:
        return self.rank * arch.outputs(self.targets)
