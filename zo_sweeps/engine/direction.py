"""Sums of directions as tensors, one parameter at a time; moves of integer codes; bases that a minibatch gives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor, nn

from zo_sweeps.core.memory_parts import Part, counted_as
from zo_sweeps.engine import linear
from zo_sweeps.engine.layers.weight_only import Integers, rows_at_once
from zo_sweeps.engine.types import IntegerDirections
from zo_sweeps.methods.perturbation import (
    ActivationPerturbation,
    Basis,
    FactoredPerturbation,
    Params,
    PartialPerturbation,
    Perturbation,
)
from zo_sweeps.methods.points import Estimate, NoiseKey, Point

CHUNK = 1 << 22  # codes moved at a time, at most: they take about 40 bytes each meanwhile


class Directions:
    """The directions between several points, each of which is drawn once: both signs of a query share theirs."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.keys = [*dict.fromkeys(point.key for point in points)]
        self.queries, self.scales = [self.keys.index(point.key) for point in points], [p.scale for p in points]
        self._of_points: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return each point's direction and scale, [P] each; copied to a device once."""
        if device not in self._of_points:
            self._of_points[device] = (
                torch.tensor(self.queries, device=device),
                torch.tensor(self.scales, device=device),
            )
        return self._of_points[device]

    def at(self, drawn: Tensor) -> Tensor:
        """Return each point's own, [P, ...], of what was drawn for each key, [K, ...]; as it is, if P = K."""
        return drawn if len(self.queries) == len(self.keys) else drawn.index_select(0, self._on(drawn.device)[0])

    def scaled(self, drawn: Tensor) -> Tensor:
        """Return `at` times the points' scales. Overwrites `drawn` if there are no more points than keys."""
        return self.at(drawn).mul_(self._on(drawn.device)[1].view(-1, *[1] * (drawn.dim() - 1)))


def combine(
    noise: Perturbation,
    terms: Sequence[tuple[NoiseKey, float]],
    name: str,
    param: Tensor,
    *,
    rows: tuple[int, int] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return param + sum_i c_i z(key_i) in the parameter's dtype: summed in fp32 and rounded once.

    Args:
        rows: (first, one past the last) row to compute; defaults to all rows.
        out: the output tensor, which may be `param` itself; defaults to a new tensor.
    """
    theta = param.detach() if rows is None else param.detach()[slice(*rows)]
    if isinstance(noise, FactoredPerturbation) and param.dim() == 2 and rows is None:
        return _add_products(noise, terms, name, theta, torch.empty_like(theta) if out is None else out)
    if isinstance(noise, PartialPerturbation):
        start = 0 if rows is None else rows[0] * param.stride(0)
        return noise.combine(terms, name, theta.shape, theta.device, base=theta, out=out, start=start)
    total = _sum(terms, noise, name, param.shape, param.device)
    total = (total if rows is None else total[slice(*rows)]).add_(theta)
    return total.to(theta.dtype) if out is None else out.copy_(total)


def _add_products(
    noise: FactoredPerturbation, terms: Sequence[tuple[NoiseKey, float]], name: str, theta: Tensor, out: Tensor
) -> Tensor:
    """Write theta + sum_i c_i U_i V_i^T to `out`, as many rows at a time as stay in cache: theta is read once."""
    U, V = noise.factors_of([key for key, _ in terms], name, theta.shape, theta.device)
    drawn = [*zip(U, V, strict=True)]
    if noise.one_product:
        U = torch.cat([u.mul_(weight) for (u, _), (_, weight) in zip(drawn, terms, strict=True)], dim=1)
        return _add_product(U, torch.cat([*V], dim=1), theta, out)
    rows = rows_at_once(theta.shape[1], theta.device)
    for start in range(0, theta.shape[0], rows):
        some = slice(start, start + rows)
        products = ((u[some] @ v.T).mul_(weight) for (u, v), (_, weight) in zip(drawn, terms, strict=True))
        out[some] = reduce(Tensor.add_, products).add_(theta[some])
    return out


def _add_product(U: Tensor, V: Tensor, theta: Tensor, out: Tensor) -> Tensor:
    """Write theta + U V^T to `out`: summed in fp32, whatever theta's dtype, and rounded once."""
    if theta.dtype == U.dtype:
        return torch.addmm(theta, U, V.T, out=out)
    rows = rows_at_once(theta.shape[1], theta.device)
    for start in range(0, theta.shape[0], rows):
        some = slice(start, start + rows)
        out[some] = torch.addmm(theta[some].to(U.dtype), U[some], V.T)
    return out


def ghat(estimate: Estimate, noise: Perturbation, name: str, param: Tensor) -> Tensor:
    """Return sum_i weight_i * z(key_i) for one parameter, a new fp32 tensor. Cost: one noise pass per term."""
    if isinstance(noise, PartialPerturbation):
        return noise.combine(estimate.terms, name, param.shape, param.device)
    return _sum(estimate.terms, noise, name, param.shape, param.device)


def _sum(
    terms: Sequence[tuple[NoiseKey, float]], noise: Perturbation, name: str, shape: torch.Size, device: torch.device
) -> Tensor:
    return reduce(Tensor.add_, (noise.sample(key, name, shape, device).mul_(weight) for key, weight in terms))


@dataclass(frozen=True)
class Along(Perturbation):
    """The line theta + scale * ghat as a perturbation, so that the usual `evaluate` applies to it."""

    estimate: Estimate
    noise: Perturbation

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        return ghat(self.estimate, self.noise, name, torch.empty(shape, device=device))


def _parts(param: Integers) -> Iterator[tuple[int, Tensor]]:
    """Yield (index of the first, codes), as many codes at a time as one chunk holds: flat views of the parameter."""
    flat, at_once = param.detach().view(-1), min(rows_at_once(1, param.device), CHUNK)
    for start in range(0, len(flat), at_once):
        yield start, flat[start : start + at_once]


def moved(noise: Perturbation, point: Point, name: str, param: Integers) -> Tensor:
    """Return a parameter's codes at a point, int8. Memory: 1 byte per code, and one chunk in fp32."""
    assert isinstance(noise, IntegerDirections), f"integer codes move by integers, which {noise.name} does not draw"
    out = torch.empty_like(param, requires_grad=False)
    for start, codes in _parts(param):
        there = noise.point(point, name, codes, param.largest, start)
        out.view(-1)[start : start + len(codes)] = there
    return out


def ghat_parts(
    estimate: Estimate, noise: Perturbation, name: str, param: Integers
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (index of the first, codes, ghat) for one chunk after the other.

    The codes are a view of the parameter, to be moved in place; ghat is a new fp32 tensor: sum_i weight_i z(key_i).
    """
    assert isinstance(noise, IntegerDirections), f"integer codes move by integers, which {noise.name} does not draw"
    for start, codes in _parts(param):
        yield start, codes, noise.ghat(estimate.terms, name, codes, param.largest, start)


@contextmanager
def bases_of_inputs(
    module: nn.Module, params: Params, noise: ActivationPerturbation, key: NoiseKey
) -> Iterator[dict[str, Basis]]:
    """Fill the dict with a basis for each matrix whose layer computes within the block, by the parameter's name.

    Of the first inputs of each layer alone, all rows of the forward, padding included. A table that tokens are looked
    up in has none, also as the head of a tied model: its gradient is not of the head's inputs. Cost: `noise.basis` of
    each matrix; no inputs are kept.
    """
    layers = [*module.modules()]
    tables = {id(layer.weight) for layer in layers if isinstance(layer, nn.Embedding)}
    names = {id(param): name for name, param in params.items() if id(param) not in tables}
    bases: dict[str, Basis] = {}

    def keep(name: str, layer: nn.Module, args: tuple[Tensor]) -> None:
        if name not in bases:
            with counted_as(Part.WORKSPACE), torch.inference_mode(False), torch.no_grad():
                rows = args[0].reshape(-1, args[0].shape[-1])
                bases[name] = Basis(noise.basis(key, name, rows), linear.is_transposed(layer))

    with ExitStack() as hooks:
        for layer in layers:
            if linear.is_projection(layer) and (name := names.get(id(layer._parameters.get("weight")))):
                hooks.callback(layer.register_forward_pre_hook(partial(keep, name)).remove)
        yield bases


def digest_of(bases: Mapping[str, Basis]) -> float:
    """Return 52 bits of the SHA-256 of the bases' names and bytes, a whole number that a logged float holds exactly."""
    found = hashlib.sha256()
    for name in sorted(bases):
        found.update(f"{name}\n".encode())
        found.update(bases[name].columns.cpu().contiguous().numpy().data)
    return float(int(found.hexdigest()[:13], 16))
