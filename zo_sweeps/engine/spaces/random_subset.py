"""Random subset: the control of sensitive parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from zo_sweeps.engine import masks
from zo_sweeps.engine.spaces.sparse import Sparse, targets
from zo_sweeps.engine.spaces.wrapped import INIT_STEP
from zo_sweeps.engine.types import NoiseKey


def install(module: nn.Module, options: Mapping[str, Any], seed: int) -> Sparse:
    """density * numel entries of each layer, drawn from the trial's seed; drawn again every `refresh` steps (0: never).

    `options`: density, refresh, modules (qualified names). Source: Guo et al., 2024, section 4.1.
    """
    weights, density = targets(module, options), options["density"]

    def find(step: int) -> masks.Masks:
        return masks.random(weights, density, NoiseKey(seed, INIT_STEP, step))

    return Sparse(module, find(0), options["refresh"], find)
