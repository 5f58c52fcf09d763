"""The two ways a projection stores its weight: nn.Linear as [out, in], transformers' Conv1D (GPT-2) as [in, out]."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def check(layer: nn.Module, name: str) -> None:
    """Assert that a layer is a projection: a Linear, or a Conv1D, recognized by its attribute `nf`."""
    known = isinstance(layer, nn.Linear) or isinstance(getattr(layer, "nf", None), int)
    assert known, f"{name} is a {type(layer).__name__}, not a Linear"


def is_transposed(layer: nn.Module) -> bool:
    """Tell whether the weight is stored as [in, out]."""
    return not isinstance(layer, nn.Linear)


def dense(layer: Any) -> Tensor:
    """Return the weight as [out, in]: itself, or a transposed view of it."""
    weight: Tensor = layer.weight
    return weight.t() if is_transposed(layer) else weight
