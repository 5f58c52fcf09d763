"""Sensitive parameters: the entries with the largest squared gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from zo_sweeps.engine.spaces.sparse import Sparse


def install(module: nn.Module, options: Mapping[str, Any], seed: int) -> Sparse:
    """The entries of `options["masks"]`; found again by `options["find"]`(step) every `refresh` steps (0: never).

    Finding takes gradients, so it needs batches and a loss, which a space does not have: `engine.masks.sensitive` finds
    a mask, and who installs the space keeps it for the next trial. Source: Guo et al., 2024, definitions 3 and 4, eqs.
    11 and 12.
    """
    return Sparse(module, options["masks"], options["refresh"], options.get("find"))
