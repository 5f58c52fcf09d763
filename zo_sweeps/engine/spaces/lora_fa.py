"""LoRA-FA: A is drawn once and frozen, B moves. The space of P-RGE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from zo_sweeps.engine.spaces.low_rank import LowRank


def install(module: nn.Module, options: Mapping[str, Any], seed: int) -> LowRank:
    """A ~ Kaiming-uniform, frozen; B = 0, trained in fp32. `options`: rank, alpha, modules (qualified names)."""
    return LowRank(module, options["modules"], options["rank"], options["alpha"], train_A=False, seed=seed)
