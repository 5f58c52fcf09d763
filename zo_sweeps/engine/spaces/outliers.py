"""Weight outliers: the entries of largest magnitude."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from zo_sweeps.engine import masks
from zo_sweeps.engine.spaces.sparse import Sparse, targets


def install(module: nn.Module, options: Mapping[str, Any], seed: int) -> Sparse:
    """The density * numel largest |w|, chosen once, before training.

    `options`: density, scope (per_layer or global), modules (qualified names). Source: Guo et al., 2024, section 4.1.
    """
    return Sparse(module, masks.outliers(targets(module, options), options["density"], options["scope"]))
