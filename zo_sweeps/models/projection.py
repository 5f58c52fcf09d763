"""Projections: modules that multiply by one weight."""

from __future__ import annotations

from typing import Any

from torch import nn


def is_projection(layer: object) -> bool:
    """Tell whether a module is a Linear, or transformers' Conv1D (GPT-2), which stores its weight as [in, out]."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(layer, nn.Linear | Conv1D)


def is_transposed(layer: nn.Module) -> bool:
    """Tell whether a projection stores its weight, or stored it before its encoding, as [in, out]."""
    return bool(getattr(layer, "transposed", not isinstance(layer, nn.Linear)))


def features(layer: Any) -> tuple[int, int]:
    """Return the (out, in) features of a projection: a Linear, one stored as codes, or a Conv1D."""
    return (layer.nf, layer.nx) if hasattr(layer, "nf") else (layer.out_features, layer.in_features)
