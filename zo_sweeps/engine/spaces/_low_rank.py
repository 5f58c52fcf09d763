"""The options of LoRA, LoRA-FA and DoRA. Not a member of the axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.space import AdapterFormat, LayerSpace

FACTORS = {"A": "lora_A.weight", "B": "lora_B.weight"}


@dataclass(frozen=True)
class LowRankSpace(LayerSpace):
    """Factors A [r, in] and B [out, r] per target layer, whose product is multiplied by alpha / r."""

    adapter: ClassVar[AdapterFormat | None] = AdapterFormat("LORA", FACTORS)

    rank: int = option(16, "r of the factors", least=1)
    alpha: float = option(16.0, "the low-rank term is multiplied by alpha / r")
    init: Literal["kaiming", "gaussian"] = option(
        "kaiming", "A at the start: kaiming, U(±1/√in); gaussian, N(0, 1/r²), as peft's of that name", added=True
    )

    def adapter_options(self) -> dict[str, Any]:
        return {"r": self.rank, "lora_alpha": self.alpha, "lora_dropout": 0.0, "use_dora": False}
