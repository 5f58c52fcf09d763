"""Projections: modules that multiply by one weight."""

from __future__ import annotations

from torch import nn


def is_projection(layer: object) -> bool:
    """Tell whether a module is a Linear, or transformers' Conv1D (GPT-2), which stores its weight as [in, out]."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(layer, nn.Linear | Conv1D)


def is_transposed(layer: nn.Module) -> bool:
    """Tell whether a projection stores its weight as [in, out]."""
    return not isinstance(layer, nn.Linear)


def features(layer: nn.Module) -> tuple[int, int]:
    """Return the (out, in) features of a projection."""
    out, into = layer.get_parameter("weight").shape
    return (into, out) if is_transposed(layer) else (out, into)
