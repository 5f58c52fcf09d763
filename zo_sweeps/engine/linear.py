"""The ways a projection stores its weight; and layers whose forward is another for a while.

nn.Linear as [out, in], transformers' Conv1D (GPT-2) as [in, out], WeightOnly as codes. Callers that need more than the
module's own forward ask here, never for its `weight`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from zo_sweeps.engine.layers.weight_only import WeightOnly


def is_projection(layer: nn.Module) -> bool:
    """Tell whether a layer is a Linear, a WeightOnly, or a Conv1D, recognized by its attribute `nf`."""
    return isinstance(layer, nn.Linear | WeightOnly) or isinstance(getattr(layer, "nf", None), int)


def check(layer: nn.Module, name: str) -> None:
    """Assert that a layer is a projection."""
    assert is_projection(layer), f"{name} is a {type(layer).__name__}, not a Linear"


def is_transposed(layer: nn.Module) -> bool:
    """Tell whether the weight is, or was before its encoding, stored as [in, out]."""
    return layer.transposed if isinstance(layer, WeightOnly) else not isinstance(layer, nn.Linear)


def shape(layer: Any) -> tuple[int, int]:
    """Return the features (out, in)."""
    if isinstance(layer, WeightOnly):
        return layer.codes.shape
    out, into = dense(layer).shape
    return out, into


def like(layer: Any) -> Tensor:
    """Return a tensor of the dtype in which the layer multiplies, and of its device."""
    return layer.codes.like if isinstance(layer, WeightOnly) else layer.weight


def dense(layer: Any) -> Tensor:
    """Return the weight as [out, in]: itself, a transposed view of it, or decoded."""
    if isinstance(layer, WeightOnly):
        return layer.dense()
    weight: Tensor = layer.weight
    return weight.t() if is_transposed(layer) else weight


def as_stored(layer: Any) -> Tensor:
    """Return the weight as the model's own projection stores it, which is what the flat indices of masks refer to."""
    if not isinstance(layer, WeightOnly):
        weight: Tensor = layer.weight
        return weight.detach()
    return layer.dense().t().contiguous() if layer.transposed else layer.dense()


def parts(layer: Any) -> Iterator[Tensor]:
    """Yield the rows of the weight, in order: all at once, or as many as are decoded at a time."""
    if isinstance(layer, WeightOnly):
        yield from (rows for _, rows in layer.parts())
    else:
        yield dense(layer)


def inputs(layer: Any, x: Tensor) -> Tensor:
    """Return activations x as the layer multiplies them: rounded where its codes demand it."""
    return layer.codes.inputs(x) if isinstance(layer, WeightOnly) else x


def products(layer: Any, *inputs: Tensor) -> list[Tensor]:
    """Return x W^T for every input as it is, without the bias. A weight stored as codes is decoded once for all."""
    if isinstance(layer, WeightOnly):
        return layer.products(*inputs)
    return [F.linear(x, dense(layer)) for x in inputs]


@contextmanager
def replaced(
    layers: Iterable[nn.Module], wrap: Callable[[nn.Module, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replace the forward of each layer by `wrap(layer, forward)` within the block."""
    before = {layer: vars(layer).get("forward") for layer in layers}  # of the instance, as after another `replaced`
    for layer in before:
        layer.forward = wrap(layer, layer.forward)
    try:
        yield
    finally:
        for layer, forward in before.items():
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward
