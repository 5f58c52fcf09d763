"""LoRA-FA: A is drawn once and frozen, B moves. The space of P-RGE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from zo_sweeps.engine.spaces.low_rank import LowRankLinear
from zo_sweeps.engine.spaces.wrapped import INIT_STEP, Wrapped
from zo_sweeps.engine.types import NoiseKey


def install(module: nn.Module, options: Mapping[str, Any], seed: int) -> Wrapped:
    """A ~ Kaiming-uniform, frozen; B = 0, trained in fp32: d = r out a layer.

    `options`: rank, alpha, modules (qualified names). Source: P-RGE, section 2 and appendix A.4.
    """
    key, rank, alpha = NoiseKey(seed, INIT_STEP, 0), options["rank"], options["alpha"]
    return Wrapped(module, options["modules"], lambda base, name: LowRankLinear(base, rank, alpha, False, key, name))
