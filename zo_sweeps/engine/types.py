"""The data that flows through one ZO step, and the protocols of the axes.

A gradient estimate is data: a short tuple of (noise key, coefficient), never a tensor. The tensors are drawn again from
the keys wherever they are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Params = Mapping[str, nn.Parameter]
State = dict[str, Any]
Evaluate = Callable[[Sequence["Point"]], list[float]]  # points -> f at each


class NoiseKey(NamedTuple):
    """Address of one direction z. With a parameter's name and an element's index it names one random number."""

    seed: int
    step: int
    query: int


@dataclass(frozen=True)
class Layout:
    """The vector of all d parameters: who stands where in it, and how many directions a step draws in it.

    Args:
        shapes: each parameter's shape, in the space's order.
        q: directions a step.
    """

    shapes: Mapping[str, torch.Size]
    q: int

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Where each parameter's first element stands."""
        offsets, end = {}, 0
        for name, shape in self.shapes.items():
            offsets[name] = end
            end += shape.numel()
        return offsets

    @cached_property
    def d(self) -> int:
        return sum(shape.numel() for shape in self.shapes.values())

    def drawn_before(self, key: NoiseKey) -> int:
        """Directions that the run draws before this one: steps count from 1, a step's queries from 0."""
        return (key.step - 1) * self.q + key.query


@dataclass(frozen=True)
class Point:
    """A place where f is wanted: theta + scale * z(key). `scale` is +eps or -eps; 0 is theta itself."""

    key: NoiseKey
    scale: float


@dataclass(frozen=True)
class Estimate:
    """ghat = sum_i weight_i * z(key_i), and the scalars it came from.

    Args:
        terms: (key_i, weight_i) for the update; weight_i holds the 1/q of the mean.
        coefs: what the log keeps, one number a query (projected_grad for RGE); NaN: dropped from the step.
        loss: for the curve: mean of the points' losses, or f(theta) where it is one of them.
    """

    terms: tuple[tuple[NoiseKey, float], ...]
    coefs: tuple[float, ...]
    loss: float

    @classmethod
    def mean(cls, seed: int, step: int, coefs: Sequence[float], loss: float) -> Estimate:
        """(1/k) sum_i g_i z_i over the k of a step's queries whose g_i is there (is not NaN)."""
        came = [(NoiseKey(seed, step, query), g) for query, g in enumerate(coefs) if not math.isnan(g)]
        return cls(tuple((key, g / len(came)) for key, g in came), tuple(coefs), loss)


class DivergedError(ArithmeticError):
    """A loss was not finite. Raised before the update, so that the weights are those of the last good step."""


class LanguageModel(Protocol):
    """What the engine needs of a model: the hidden states of a right-padded batch, and the head on chosen rows."""

    @property
    def module(self) -> nn.Module: ...

    def hidden(self, input_ids: Tensor, attention_mask: Tensor, positions: Tensor | None) -> Tensor:
        """[N, T] token ids, mask, and positions where rows hold several texts -> [N, T, D] last hidden states."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """[K, D] -> [K, V] logits."""
        ...


class Estimator(Protocol):
    """Ask, then tell: which points a step needs, and what their losses say of the gradient."""

    @property
    def q(self) -> int:
        """Directions a step."""
        ...

    @property
    def evaluations(self) -> int:
        """Points a step."""
        ...

    def bind(self, d: int) -> Estimator:
        """The estimator for a space of d parameters; itself, where d does not matter."""
        ...

    def points(self, seed: int, step: int) -> tuple[Point, ...]: ...

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        """What the losses say; of queries that `points` leaves out (see peers.py), the coefficient is NaN."""
        ...

    def from_log(self, seed: int, step: int, coefs: Sequence[float]) -> Estimate:
        """The estimate of a step that was already run, from its logged coefficients alone."""
        ...


class Perturbation(Protocol):
    """A distribution of directions with E[z z^T] = I unless its docstring says otherwise."""

    def bind(self, layout: Layout) -> Perturbation:
        """The perturbation of that whole vector; itself, where a parameter's part needs nothing of the others."""
        ...

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        """One parameter's part of z(key): a new fp32 tensor, a pure function of the arguments and the layout."""
        ...


@runtime_checkable
class Partial(Protocol):
    """A perturbation that makes sums of directions, and any part of a parameter's, without storing a direction."""

    def combine(
        self,
        terms: Sequence[tuple[NoiseKey, float]],
        name: str,
        shape: torch.Size,
        device: torch.device,
        *,
        base: Tensor | None = None,
        out: Tensor | None = None,
        start: int = 0,
    ) -> Tensor:
        """base + sum_i c_i z(key_i), fp32, of the elements start, start + 1, ... of the parameter `name`."""
        ...


class Update(Protocol):
    """theta <- theta - lr * (something of ghat). State is explicit and returned."""

    def init(self, params: Params) -> State: ...

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State: ...


@runtime_checkable
class Choosing(Protocol):
    """An update that looks at f along ghat before it moves, and scales the estimate (and its log) by what it finds."""

    @property
    def evaluations(self) -> int:
        """Points that it looks at, a step."""
        ...

    def choose(self, estimate: Estimate, lr: float, along: Callable[[Sequence[float]], list[float]]) -> Estimate: ...


class Peers(Protocol):
    """Those that a step's points are shared with; see peers.py."""

    def losses(self, points: Sequence[Point], f: Evaluate) -> tuple[Sequence[Point], list[float]]:
        """The points whose losses came, in order, and the losses; some of them by f, which evaluates here."""
        ...

    def tell(self, coefs: Sequence[float]) -> None:
        """The next line of the log, from step 1 on."""
        ...
