"""LoRA: both factors move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from zo_sweeps.engine.spaces.low_rank import LowRankLinear
from zo_sweeps.engine.spaces.wrapped import INIT_STEP, Wrapped
from zo_sweeps.engine.types import NoiseKey


def install(module: nn.Module, options: Mapping[str, Any], seed: int) -> Wrapped:
    """A ~ Kaiming-uniform, B = 0, both trained in fp32: d = r (in + out) a layer.

    `options`: rank, alpha, modules (qualified names). Source: LoRA (Hu et al., 2021), section 4.1.
    """
    key, rank, alpha = NoiseKey(seed, INIT_STEP, 0), options["rank"], options["alpha"]
    return Wrapped(module, options["modules"], lambda base, name: LowRankLinear(base, rank, alpha, True, key, name))
