"""Evaluation of f at theta + scale * z: one point at a time, or several in one forward.

By default theta is not written to, so it cannot drift: each layer computes a point's values from theta and the
addressed noise (out of place), uses them, and discards them. `InPlace` is the option `evaluation.restore=in_place`, as
in MeZO. Modes, with forwards per step for q two-sided queries:

    sequential  2q  one point per forward; memory of the largest layer
    outer       2   P-RGE's outer loop: the q plus points, then the q minus points
    inner       q   P-RGE's inner loop: both signs of a query
    both        1   all 2q points in one forward

The full space holds several points if the directions of its matrices are products of thin factors (factored.py).

For one-sided queries theta itself replaces the minus points: q + 1 forwards in `sequential`; theta has a forward of its
own in `outer`, and shares the first query's in `inner`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zo_sweeps.core.memory_parts import Part, counted_as
from zo_sweeps.engine import linear
from zo_sweeps.engine.direction import Directions, combine, moved
from zo_sweeps.engine.factored import factored
from zo_sweeps.engine.layers.weight_only import Integers, rows_at_once
from zo_sweeps.engine.rounding import probe
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.perturbation import FactoredPerturbation, Params, PartialPerturbation, Perturbation
from zo_sweeps.methods.points import NoiseKey, Point
from zo_sweeps.methods.space import InstalledSpace

Objective = Callable[[int], Tensor]  # number of row groups P -> losses [P]
StepObjective = Objective | Sequence[Objective]  # of all points, or of each query's own


@dataclass(frozen=True)
class RowParts:
    """f of a minibatch whose rows are divided among forwards: sum_k n_k f_k / sum_k n_k, in fp64 and in this order.

    Args:
        parts: f_k, the mean over the terms of each part. terms: their numbers n_k.
    """

    parts: Sequence[Objective]
    terms: Sequence[int]

    def __call__(self, points: int) -> Tensor:
        """Return f at P points, [P] fp64."""
        losses = [part(points).tolist() for part in self.parts]
        return torch.tensor([self._mean(of_point) for of_point in zip(*losses, strict=True)], dtype=torch.float64)

    def divide(self, points: Sequence[Point]) -> list[Point]:
        """Return each point once for each part, which owns that part's rows."""
        return [replace(point, part=part) for point in points for part in range(len(self.parts))]

    def of_divided(self, losses: Sequence[float]) -> list[float]:
        """Return f at points from the losses of `divide`'s: the bits of `__call__`."""
        count = len(self.parts)
        return [self._mean(losses[start : start + count]) for start in range(0, len(losses), count)]

    def _mean(self, losses: Sequence[float]) -> float:
        total = 0.0  # not `sum`, which newer versions of Python compensate
        for count, loss in zip(self.terms, losses, strict=True):
            total += count * loss
        return total / sum(self.terms)


def evaluate(
    objective: Objective,
    module: nn.Module,
    space: InstalledSpace,
    noise: Perturbation,
    points: Sequence[Point],
    mode: Mode,
    most: int | None = None,
) -> list[float]:
    """Return f at each point, in order, at most `most` in one forward: rounding alone depends on how many.

    Raises ValueError for a batched mode over a space that holds only one point per forward.
    """
    if mode.batched and not (space.batched or isinstance(noise, FactoredPerturbation)):
        what = f"mode {mode.value!r} needs a space that holds several points, or directions in factors"
        raise ValueError(f"{what}; use mode 'sequential'")
    losses: list[float] = [0.0] * len(points)
    for group in mode.groups(points, most):
        chosen = [points[i] for i in group]
        with torch.inference_mode(), _held(module, space, noise, chosen, mode):
            values = objective(len(chosen)).tolist()
        for i, value in zip(group, values, strict=True):
            losses[i] = value
    return losses


def _held(
    module: nn.Module, space: InstalledSpace, noise: Perturbation, points: Sequence[Point], mode: Mode
) -> AbstractContextManager[None]:
    """Return the block within which the model computes at the points."""
    if space.batched:
        return _stacked(module, space, noise, points)
    if mode.batched and isinstance(noise, FactoredPerturbation):
        return factored(module, space, noise, points)
    return out_of_place(module, space, noise, points)


@contextmanager
def _stacked(module: nn.Module, space: InstalledSpace, noise: Perturbation, points: Sequence[Point]) -> Iterator[None]:
    """Hold P copies of each trainable tensor, [P, *shape], in the space: small, because a batched space is small."""
    directions = Directions(points)
    with counted_as(Part.TRAINABLE):
        space.hold({name: _at(directions, noise, name, param) for name, param in space.params.items()})
    try:
        yield
    finally:
        space.hold({})


def _at(directions: Directions, noise: Perturbation, name: str, param: Tensor) -> Tensor:
    """Return a parameter at P points, [P, *shape]."""
    drawn = noise.samples(directions.keys, name, param.shape, param.device)
    if isinstance(noise, PartialPerturbation):
        return directions.scaled(drawn).add_(param.detach()).to(param.dtype)
    stacked = param.detach().expand(len(directions.queries), *param.shape).clone()
    for point, query, scale in zip(stacked, directions.queries, directions.scales, strict=True):
        if scale:
            point.add_(drawn[query], alpha=scale)
    return stacked


@contextmanager
def out_of_place(
    module: nn.Module, space: InstalledSpace, noise: Perturbation, points: Sequence[Point]
) -> Iterator[None]:
    """Make `module` compute at the one point within the block, with a few million perturbed values in memory at a time.

    A Linear computes its weight a few rows at a time and multiplies by them while they are in cache; an Embedding
    computes the rows that it looks up; in any other module the parameters are swapped while it computes (those of an
    attention's `out_proj`, which torch reads and does not call, while the attention does). A parameter that is read
    while its own module does not compute is read as it is: `InPlace` has no such limit. Integer codes
    are swapped for codes, 1 byte each, one weight at a time. A parameter that is used twice is computed twice.

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

    params = {layer: layer._parameters.items() for layer in module.modules()}
    owned = {layer: {slot: p for slot, p in own if p is not None and id(p) in names} for layer, own in params.items()}
    moving = [layer for layer, slots in owned.items() if slots]
    in_parts = {
        layer: part for layer in moving if isinstance(noise, PartialPerturbation) and (part := _in_parts(layer))
    }
    attentions = (layer for layer in module.modules() if isinstance(layer, nn.MultiheadAttention))
    readers: dict[nn.Module, nn.Module] = {layer.out_proj: layer for layer in attentions}
    with ExitStack() as hooks, linear.replaced(in_parts, lambda layer, own: partial(in_parts[layer], layer, at)):
        for layer in moving:
            if layer not in in_parts:
                reader, slots = readers.get(layer, layer), owned[layer]
                hooks.callback(reader.register_forward_pre_hook(partial(_enter, layer, slots, at)).remove)
                hooks.callback(reader.register_forward_hook(partial(_leave, layer, slots), always_call=True).remove)
        yield


def _in_parts(layer: nn.Module) -> Callable[..., Tensor] | None:
    """Return the module's forward that uses a few rows of its weight at a time; None: it needs the whole weight."""
    if type(layer) is nn.Linear:
        return _linear
    # On a GPU, launching kernels for each row would cost more than computing the whole table.
    if type(layer) is nn.Embedding and layer.max_norm is None and layer.weight.device.type == "cpu":
        return _embedding
    return None


def _embedding(layer: nn.Embedding, at: Callable[..., Tensor], input: Tensor) -> Tensor:
    rows, where = torch.unique(input, return_inverse=True)
    with counted_as(Part.WORKSPACE):
        table = torch.cat([at(layer.weight, row, row + 1) for row in rows.tolist()])
    return F.embedding(where, table)


def _linear(layer: nn.Linear, at: Callable[..., Tensor], input: Tensor) -> Tensor:
    """Return input W^T + b, computed a few rows of W (outputs) at a time, rounded once."""
    weight = layer.weight
    bias = None if layer.bias is None else at(layer.bias)
    rows = rows_at_once(layer.in_features, weight.device)
    if rows >= layer.out_features:
        return F.linear(input, at(weight), bias)
    y = input.new_empty(*input.shape[:-1], layer.out_features)
    flat, into = input.reshape(-1, layer.in_features), y.view(-1, layer.out_features)
    for start in range(0, layer.out_features, rows):
        stop = min(start + rows, layer.out_features)
        some, part = at(weight, start, stop).T, into[:, start:stop]
        if bias is None:
            torch.mm(flat, some, out=part)
        else:
            torch.addmm(bias[start:stop], flat, some, out=part)
    return y


def _enter(owner: nn.Module, owned: dict[str, nn.Parameter], at: Callable[..., Tensor], *_: object) -> None:
    slots: dict[str, Any] = owner._parameters  # with plain tensors, until `_leave`
    slots.update({slot: at(param) for slot, param in owned.items()})


def _leave(owner: nn.Module, owned: dict[str, nn.Parameter], *_: object) -> None:
    owner._parameters.update(owned)


class InPlace:
    """Evaluation that moves theta to each point in turn, theta <- theta + delta * z, and restores it at the end.

    A two-sided query costs three passes over the parameters (delta = eps, -2 eps, eps) and one forward per point. delta
    * z is rounded before it is added, as in MeZO's code. The rounding error that a step's passes leave in theta is part
    of the run: `replay` repeats the passes, without the forwards, and is bit-identical.

    `drift`: max over elements of |sum over steps of (theta after the passes - theta before)|, at up to PROBE evenly
    spaced elements of each parameter. Memory: one parameter's noise, and the probes.
    """

    def __init__(self) -> None:
        self._drifted: dict[str, Tensor] = {}

    @property
    def drift(self) -> float:
        """The largest drift of any probed element so far; see the class."""
        return max((total.abs().max().item() for total in self._drifted.values()), default=0.0)

    def losses(self, objective: Objective, params: Params, noise: Perturbation, points: Sequence[Point]) -> list[float]:
        """Return f at each point, in order."""
        losses: list[float] = []
        with closing(self._visits(params, noise, points)) as visits:  # closing restores theta if f raises
            for _ in visits:
                with torch.inference_mode():
                    losses += objective(1).tolist()
        return losses

    def walk(self, params: Params, noise: Perturbation, points: Sequence[Point]) -> None:
        """Run the passes without the forwards: theta ends up as if f had been evaluated at the points."""
        for _ in self._visits(params, noise, points):
            pass

    def _visits(self, params: Params, noise: Perturbation, points: Sequence[Point]) -> Generator[None, None, None]:
        """Move theta to each point in turn; yield once at each."""
        before = {name: probe(param).float() for name, param in params.items()}
        key, scale = points[0].key, 0.0
        try:
            for point in points:
                if point.key != key:
                    _shift(params, noise, key, -scale)
                    key, scale = point.key, 0.0
                _shift(params, noise, key, point.scale - scale)
                scale = point.scale
                yield
        finally:
            _shift(params, noise, key, -scale)
        for name, param in params.items():
            moved = probe(param).float() - before[name]
            previous = self._drifted.get(name)
            # If the space has changed its parameters meanwhile, measure the new ones from here on.
            self._drifted[name] = moved if previous is None or previous.shape != moved.shape else previous + moved


@torch.no_grad()
def _shift(params: Params, noise: Perturbation, key: NoiseKey, delta: float) -> None:
    """Set theta <- theta + delta * z(key)."""
    if delta:
        for name, param in params.items():
            z = noise.sample(key, name, param.shape, param.device)
            param.add_(z.mul_(delta).to(param.dtype))
