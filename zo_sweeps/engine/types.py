"""The data that flows through one ZO step, and the protocols of the axes.

A gradient estimate is data: a short tuple of (noise key, coefficient), never a tensor. The tensors are drawn again from
the keys wherever they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from zo_sweeps.methods.points import Estimate, NoiseKey, Point

Evaluate = Callable[[Sequence[Point]], list[float]]  # points -> f at each


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
