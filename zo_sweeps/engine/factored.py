"""A model at P points of the full space in one forward: directions of matrices stay products of two thin factors.

For a weight W [m, n] and a direction U V^T, U [m, r] and V [n, r], group p of the rows is computed as

    y_p = x_p W^T + scale_p (x_p V) U^T

so W is multiplied once for all points, and no perturbed weight is ever written. Theta is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zo_sweeps.core.memory_parts import Part, counted_as
from zo_sweeps.engine import linear
from zo_sweeps.engine.direction import Directions
from zo_sweeps.engine.rows import grouped, point_of_row, present, sizes, ungrouped
from zo_sweeps.methods.perturbation import FactoredPerturbation
from zo_sweeps.methods.points import Point, rows_of_points
from zo_sweeps.methods.space import InstalledSpace


@contextmanager
def factored(
    module: nn.Module, space: InstalledSpace, noise: FactoredPerturbation, points: Sequence[Point]
) -> Iterator[None]:
    """Make `module` compute at P points within the block; its rows are P groups (`engine.rows`).

    How each kind of module takes its direction: a Linear or Conv1D multiplies by the factors, and adds its bias at each
    point; an Embedding adds scale_p U[ids] V^T to what it looks up, and a tied head multiplies by the same factors;
    norms and any other module run once per group, with their parameters at that group's point. A parameter that a
    module shares with one that it holds is that one's to use. A module that holds others and has parameters of its own,
    or computes with other than rows, cannot be run so: the plan refuses it (`Arch.no_full_points`).

    Cost: one forward of all rows; per point and matrix 2 r (m + n) operations per token, and r (m + n) Gaussians per
    query, drawn once for its points. Memory: factors of one module; in a generation, those of all modules, drawn once:
    P r (m + n) numbers of each matrix.
    """
    held = _Points({id(param): name for name, param in space.params.items()}, noise, points)
    # A table that is not trained still says how many rows there are, if it looks up the tokens.
    layers = [layer for layer, own in _owned(module, held.names) if own or type(layer) is nn.Embedding]
    with linear.replaced(layers, lambda layer, own: partial(_forward(layer), held, layer, own)):
        yield


class _Points:
    """The points of one forward."""

    def __init__(self, names: dict[int, str], noise: FactoredPerturbation, points: Sequence[Point]) -> None:
        self.names, self._noise = names, noise
        self.count = len(points)
        self._rows = 0  # of the one forward, all groups together; from its first lookup of tokens
        # What the forwards of a generation share, by parameter: factors of matrices, and vectors at the points.
        self._kept: dict[str, tuple[Tensor, Tensor]] = {}
        self._kept_vectors: dict[str, Tensor] = {}
        self.broadcasts: dict[nn.Module, bool] = {}
        self._directions = Directions(points)

    def all_rows(self, value: Tensor) -> Tensor:
        """Return a tensor [N, ...] for all rows of the forward; one of [1, ...] holds for each of them."""
        left = rows_of_points.get()
        self._rows = sum(left) if left is not None else self._rows or value.shape[0]
        rows = self._rows
        return value if value.shape[0] == rows else value.expand(rows, *value.shape[1:])

    def factors(self, param: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Return U [P, m, r] and V [P, n, r] of a matrix, U times the points' scales; None: it is not trained."""
        if (name := self.names.get(id(param))) is None:
            return None
        if (kept := self._kept.get(name)) is not None:
            return kept
        with counted_as(Part.WORKSPACE):
            U, V = self._noise.factors_of(self._directions.keys, name, param.shape, param.device)
            pair = self._directions.scaled(U).to(dtype), self._directions.at(V).to(dtype)
        if rows_of_points.get() is not None:
            self._kept[name] = pair
        return pair

    def at(self, param: Tensor) -> Tensor:
        """Return a parameter at the points, [P, *shape]; [1, *shape] if it is not trained."""
        if (name := self.names.get(id(param))) is None:
            return param.detach()[None]
        if (kept := self._kept_vectors.get(name)) is not None:
            return kept
        with counted_as(Part.WORKSPACE):
            drawn = self._noise.samples(self._directions.keys, name, param.shape, param.device)
            stacked = self._directions.scaled(drawn).add_(param.detach()).to(param.dtype)
        if rows_of_points.get() is not None and param.dim() == 1:
            self._kept_vectors[name] = stacked
        return stacked


def _owned(module: nn.Module, names: Container[int]) -> Iterator[tuple[nn.Module, bool]]:
    """Yield each module, and whether it has a parameter of these ids that none of the modules in it has too."""
    for layer in module.modules():
        own = {id(param) for param in layer._parameters.values() if param is not None and id(param) in names}
        if own and layer._modules:
            own -= {id(param) for child in layer.children() for param in child.parameters()}
        yield layer, bool(own)


Forward = Callable[..., Any]  # of points, the module, its own forward, and the forward's arguments


def _forward(layer: nn.Module) -> Forward:
    if type(layer) is nn.Linear or isinstance(getattr(layer, "nf", None), int):
        return _linear
    if type(layer) is nn.Embedding and layer.max_norm is None:
        return _embedding
    if all(param is None or param.dim() == 1 for param in layer._parameters.values()):
        return _of_features
    return _of_rows


def _linear(points: _Points, layer: Any, own: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
    y = F.linear(input, linear.dense(layer))
    rows = y.view(-1, y.shape[-1])
    groups, into = grouped(input.reshape(-1, input.shape[-1]), points.count), grouped(rows, points.count)
    if (pair := points.factors(layer.weight, input.dtype)) is not None:
        U, V = pair[::-1] if linear.is_transposed(layer) else pair
        # The thin factor on the left: on the right, a product with fewer than 16 columns takes up to 8 times as long.
        _add_product(into, torch.bmm(V.mT.contiguous(), groups.mT).mT, U)
    if layer.bias is not None:
        into.add_(points.at(layer.bias).unsqueeze(1))
    return ungrouped(into, rows).view(y.shape)


def _embedding(points: _Points, layer: nn.Embedding, own: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
    input = points.all_rows(input)
    y = own(input)
    if (pair := points.factors(layer.weight, y.dtype)) is None:
        return y
    U, V = pair
    looked_up = U.gather(1, grouped(input.unsqueeze(-1), points.count).expand(-1, -1, U.shape[-1]))
    into = grouped(y, points.count)
    _add_product(into, looked_up, V)
    return ungrouped(into, y)


def _add_product(into: Tensor, x: Tensor, U: Tensor) -> None:
    """Add x U^T to each group of `into`; x [P, N, r], U [P, m, r]."""
    if x.shape[-1] == 1 and into.dtype == torch.float32:
        into.addcmul_(x, U.mT)  # rank 1: a pass over the memory of `into`, five times as fast as the product
    else:
        into.baddbmm_(x.to(into.dtype), U.mT.to(into.dtype).contiguous())  # autocast chooses that of `into`


def _of_features(points: _Points, layer: nn.Module, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Run a module that treats every vector of features alike, such as a norm.

    In a generation it runs once, with parameters of their own for each row, if it is found to broadcast them: it gave
    the same bits at the first forward. A loop over 64 points would take a third of the time of a small model's token.
    """
    row, broadcasts = point_of_row(x), points.broadcasts.get(layer, True)
    at_once = _by_row(points, layer, own, x, row) if row is not None and broadcasts else None
    if at_once is not None and layer in points.broadcasts:
        return at_once
    flat = x.reshape(-1, x.shape[-1])
    groups = flat.split(sizes(points.count, len(flat)))
    y = torch.cat(_each(points, layer, lambda p: own(groups[p][None])), dim=1).view(*x.shape[:-1], -1)
    if row is not None and broadcasts:
        points.broadcasts[layer] = at_once is not None and torch.equal(at_once, y)
    return y


def _by_row(
    points: _Points, layer: nn.Module, own: Callable[[Tensor], Tensor], x: Tensor, row: Tensor
) -> Tensor | None:
    """Run a module once, with a parameter [N, 1, ..., D] in place of [D]; None: it takes no such parameter."""
    with _slots(layer) as slots:
        try:
            for slot, param in slots.items():
                if param is not None:
                    moved = points.at(param).expand(points.count, -1)[row]
                    slots[slot] = moved.view(len(x), *[1] * (x.dim() - 2), -1)
            return own(x)
        except RuntimeError:
            return None


def _of_rows(points: _Points, layer: nn.Module, own: Forward, *args: Any, **options: Any) -> Any:
    """Run a module whose arguments are rows: tensors [N, ...], or [1, ...] for all rows alike."""

    def part(value: Any, p: int) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        every = points.all_rows(value)
        return every.split(sizes(points.count, len(every)))[p]

    run = lambda p: own(*(part(value, p) for value in args), **{key: part(value, p) for key, value in options.items()})
    return torch.cat(_each(points, layer, run))


def _each(points: _Points, layer: nn.Module, run: Callable[[int], Tensor]) -> list[Tensor]:
    """Run a module at each point that has rows, with its parameters at that point."""
    with _slots(layer) as slots:
        moved = {slot: points.at(param) for slot, param in slots.items() if param is not None}
        outputs = []
        for p in present(points.count):
            slots.update({slot: values[p if len(values) > 1 else 0] for slot, values in moved.items()})
            outputs.append(run(p))
        return outputs


@contextmanager
def _slots(layer: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield a module's own parameters by name, in whose place tensors can stand within the block."""
    slots: dict[str, Any] = layer._parameters
    before = dict(slots)
    try:
        yield slots
    finally:
        slots.update(before)
