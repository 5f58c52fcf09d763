"""A model at theta + scale * z, with at most a few million perturbed values in memory at a time. theta is only read.

A Linear computes its weight a few rows at a time and multiplies by them while they are in cache; an Embedding computes
the rows that it looks up; in any other module the parameters are swapped while it computes. Integer codes are swapped
for codes, 1 byte each, one weight at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zo_sweeps.core.memory_parts import Part, counted_as
from zo_sweeps.engine.direction import combine, moved
from zo_sweeps.engine.layers.weight_only import Integers, rows_at_once
from zo_sweeps.engine.types import Partial
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Point
from zo_sweeps.methods.space import InstalledSpace


@contextmanager
def out_of_place(
    module: nn.Module, space: InstalledSpace, noise: Perturbation, points: Sequence[Point]
) -> Iterator[None]:
    """Make `module` compute at the one point within the block. A parameter that is used twice is computed twice.

    Theta itself (scale 0) is multiplied in the same parts as any point, so that the two round alike: in half precision,
    a difference f(theta + eps z) - f(theta) would otherwise hold a constant that eps divides.
    """
    (point,) = points
    names = {id(param): name for name, param in space.params.items()}

    def at(param: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Return rows start..stop-1 of a parameter at the point; without `stop`, the whole parameter."""
        name = names.get(id(param))
        if name is None or point.scale == 0:
            return param[start:stop] if stop is not None else param
        with counted_as(Part.WORKSPACE):
            if isinstance(param, Integers):
                return moved(noise, point, name, param)
            return combine(noise, [(point.key, point.scale)], name, param, rows=None if stop is None else (start, stop))

    undo: list[Callable[[], Any]] = []
    try:
        for layer in module.modules():
            owned = {slot: p for slot, p in layer._parameters.items() if p is not None and id(p) in names}
            if not owned:
                continue
            compute = _in_parts(layer) if isinstance(noise, Partial) else None
            if compute is not None:
                layer.forward = partial(compute, layer, at)
                undo.append(partial(delattr, layer, "forward"))
            else:
                undo.append(layer.register_forward_pre_hook(partial(_enter, owned, at)).remove)
                undo.append(layer.register_forward_hook(partial(_leave, owned), always_call=True).remove)
        yield
    finally:
        for back in undo:
            back()


def _in_parts(layer: nn.Module) -> Callable[..., Tensor] | None:
    """Return the module's forward that uses a few rows of its weight at a time; None: it needs the whole weight."""
    if type(layer) is nn.Linear:
        return _linear
    # On a GPU, launching kernels for each row would cost more than computing the whole table.
    if type(layer) is nn.Embedding and layer.max_norm is None and layer.weight.device.type == "cpu":
        return _embedding
    return None


def _embedding(layer: nn.Embedding, at: Callable[..., Tensor], ids: Tensor) -> Tensor:
    rows, where = torch.unique(ids, return_inverse=True)
    with counted_as(Part.WORKSPACE):
        table = torch.cat([at(layer.weight, row, row + 1) for row in rows.tolist()])
    return F.embedding(where, table)


def _linear(layer: nn.Linear, at: Callable[..., Tensor], x: Tensor) -> Tensor:
    """Return x W^T + b, computed a few rows of W (outputs) at a time, rounded once."""
    weight = layer.weight
    bias = None if layer.bias is None else at(layer.bias)
    rows = rows_at_once(layer.in_features, weight.device)
    if rows >= layer.out_features:
        return F.linear(x, at(weight), bias)
    y = x.new_empty(*x.shape[:-1], layer.out_features)
    flat, into = x.reshape(-1, layer.in_features), y.view(-1, layer.out_features)
    for start in range(0, layer.out_features, rows):
        stop = min(start + rows, layer.out_features)
        some, part = at(weight, start, stop).T, into[:, start:stop]
        if bias is None:
            torch.mm(flat, some, out=part)
        else:
            torch.addmm(bias[start:stop], flat, some, out=part)
    return y


def _enter(owned: dict[str, nn.Parameter], at: Callable[..., Tensor], layer: nn.Module, args: object) -> None:
    for slot, param in owned.items():
        layer._parameters[slot] = at(param)  # type: ignore[assignment]  # a plain tensor, until `_leave`


def _leave(owned: dict[str, nn.Parameter], layer: nn.Module, args: object, output: object) -> None:
    layer._parameters.update(owned)
