"""LoRA: both factors move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from zo_sweeps.engine.spaces.low_rank import LowRank


def install(module: nn.Module, options: Mapping[str, Any], seed: int) -> LowRank:
    """A ~ Kaiming-uniform, B = 0, both trained in fp32. `options`: rank, alpha, modules (qualified names)."""
    return LowRank(module, options["modules"], options["rank"], options["alpha"], train_A=True, seed=seed)
