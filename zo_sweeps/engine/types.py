"""The data that flows through one ZO step, and the protocols of the axes.

A gradient estimate is data: a short tuple of (noise key, coefficient), never a tensor. The tensors are drawn again from
the keys wherever they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

Params = Mapping[str, nn.Parameter]
State = dict[str, Any]


class NoiseKey(NamedTuple):
    """Address of one direction z. With a parameter's name and an element's index it names one random number."""

    seed: int
    step: int
    query: int


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
        coefs: what the log keeps, one number a query (projected_grad for RGE).
        loss: mean of the points' losses, for the curve.
    """

    terms: tuple[tuple[NoiseKey, float], ...]
    coefs: tuple[float, ...]
    loss: float


class DivergedError(ArithmeticError):
    """A loss was not finite. Raised before the update, so that the weights are those of the last good step."""


class LanguageModel(Protocol):
    """What the engine needs of a model: the hidden states of a right-padded batch, and the head on chosen rows."""

    @property
    def module(self) -> nn.Module: ...

    def hidden(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[N, T] token ids and mask -> [N, T, D] last hidden states."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """[K, D] -> [K, V] logits."""
        ...


class Estimator(Protocol):
    """Ask, then tell: which points a step needs, and what their losses say of the gradient."""

    @property
    def q(self) -> int: ...

    def points(self, seed: int, step: int) -> tuple[Point, ...]: ...

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate: ...

    def from_log(self, seed: int, step: int, coefs: Sequence[float]) -> Estimate:
        """The estimate of a step that was already run, from its logged coefficients alone."""
        ...


class Perturbation(Protocol):
    """A distribution of directions with E[z z^T] = I unless its docstring says otherwise."""

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor: ...


class Update(Protocol):
    """theta <- theta - lr * (something of ghat). State is explicit and returned."""

    def init(self, params: Params) -> State: ...

    def apply(self, params: Params, estimate: Estimate, noise: Perturbation, state: State, lr: float) -> State: ...


class Space(Protocol):
    """The d parameters that move, installed in a model.

    `batched` says whether one forward can hold several points of it (the P-RGE loops).
    """

    batched: bool

    @property
    def params(self) -> dict[str, nn.Parameter]: ...

    def uninstall(self) -> None:
        """Takes the space's own modules out again, leaving the base model as it was."""
        ...
