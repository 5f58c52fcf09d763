"""The protocols between the parts of one ZO step.

A gradient estimate is data: a short tuple of (noise key, coefficient), never a tensor. The tensors are
regenerated from the keys wherever they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from zo_sweeps.methods.points import NoiseKey, Point

Evaluate = Callable[[Sequence[Point]], list[float]]  # points -> f at each


class DivergedError(ArithmeticError):
    """A non-finite loss. Raised before the update, so that the weights keep their values from the last good step."""


class LanguageModel(Protocol):
    """The part of a model that the engine calls: hidden states of a right-padded batch, and the head on chosen rows."""

    @property
    def module(self) -> nn.Module: ...

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The layers that hidden states pass, in order."""

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None, positions: Tensor | None) -> Tensor:
        """Return last hidden states [N, T, D] of [N, T] token ids, mask, and positions if rows hold several texts.

        No mask is needed where no row is padded, or no token attends to those on its right.
        """

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits [K, V] of hidden states [K, D]."""


@runtime_checkable
class IntegerDirections(Protocol):
    """A perturbation that moves integer codes by integers; a code that would leave its range stays."""

    def point(self, point: Point, name: str, codes: Tensor, largest: int, start: int) -> Tensor:
        """Return the codes (elements start, start + 1, ... of a parameter) at a point, from -largest to largest."""

    def ghat(
        self, terms: Sequence[tuple[NoiseKey, float]], name: str, codes: Tensor, largest: int, start: int
    ) -> Tensor:
        """Return sum_i c_i z(key_i) at the codes, a new fp32 tensor [n]."""


class Peers(Protocol):
    """The processes that share a step's points; see peers.py."""

    def losses(self, points: Sequence[Point], f: Evaluate) -> tuple[Sequence[Point], list[float]]:
        """Return the points that were evaluated, in order, and their losses; `f` evaluates this process's share."""

    def tell(self, coefs: Sequence[float]) -> None:
        """Append one step's coefficients to the log, starting at step 1."""
