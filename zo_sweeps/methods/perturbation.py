"""The axis `perturbation`: the distribution of the directions z; and where they start in generators that repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from zo_sweeps.methods.definition import Definition, bound
from zo_sweeps.methods.points import REALS, Estimate, Layout, NoiseKey, Theta

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from zo_sweeps.methods.estimator import Estimator

Params = Mapping[str, "nn.Parameter"]
State = dict[str, Any]


class Reads(Enum):
    """What a direction depends on besides its address, and so what a replay computes with the log's coefficients."""

    NOISE = "nothing else"
    LOG = "the coefficients of earlier steps"
    WEIGHTS = "the weights at its step"
    DATA = "the minibatch at its step"


Advance = Literal["leftover", "coprime"]  # see `advance`


@dataclass(frozen=True)
class Perturbation(Definition):
    """A distribution of directions with E[z z^T] = I, or the diagonal that `second_moment` returns.

    One that `reads` more than the address has an explicit state, from `init`; at each step `at` returns the
    distribution of that step, and `observe` the state after the step's estimate.
    """

    axis: ClassVar[str] = "perturbation"
    coordinates: ClassVar[bool] = False  # z runs through the coordinates; only for estimators with the same flag
    moves: ClassVar[frozenset[Theta]] = REALS  # CODES alone: eps z is of integers
    reads: ClassVar[Reads] = Reads.NOISE
    state_copies: ClassVar[int] = 0  # fp32 copies of the trainable parameters that its state holds
    needs: ClassVar[str] = ""  # what it reads of an estimator's second coefficients: only for those that give it
    factored: ClassVar[bool] = False  # a matrix's direction is a product of two thin factors: a FactoredPerturbation
    keeps_factor: ClassVar[bool] = False  # V of its U V^T, of N(0, 1) entries, for a window of steps or the run
    portable: ClassVar[bool] = True  # its values have the same bits on every device

    def bind(self, layout: Layout) -> Perturbation:
        """Return the perturbation over the vector of all d parameters; itself, if parameters are independent."""
        return self

    def second_moment(self, shape: torch.Size) -> float | None:
        """Return E[z_j^2] over seeds and steps, of every element of a parameter of this shape; E[z_i z_j] is 0.

        None: elements are correlated, or their moments have no closed form.
        """
        return 1.0

    def directions(self, d: int) -> int | None:
        """Return the number of distinct directions of a run over d parameters before they repeat; None: no limit."""
        return None

    @property
    def steady(self) -> int:
        """Return the steps, counted from the first, after which its state changes what it draws."""
        return 1

    @property
    def no_zeros(self) -> str:
        """Why it does not go with matrices that begin at 0, and the fix; "" if it does."""
        return ""

    def evaluations(self, estimator: Estimator) -> int:
        """Return the points per step at which it evaluates f itself, besides the estimator's."""
        return 0

    def remarks(self, steps: int) -> list[str]:
        """Return its remarks for the plan of a run of so many steps."""
        return []

    def init(self, params: Params) -> State:
        """Return the state before the first step."""
        return {}

    def at(self, params: Params, state: State, step: int) -> Perturbation:
        """Return the distribution of a step that begins at these parameters and this state; neither is changed."""
        return self

    def stepped(self) -> Perturbation:
        """Return the directions along which the update moves: those of the points, but for slips of a release."""
        return self

    def observe(self, params: Params, estimate: Estimate, state: State) -> State:
        """Return the state after a step, of the distribution that `at` returned for it, whose state may be reused.

        Args:
            params: for their names and shapes; their values have moved.
        """
        return state

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        """Return one parameter's part of z(key): a new fp32 tensor, a pure function of the arguments and the layout."""
        raise NotImplementedError

    def samples(self, keys: Sequence[NoiseKey], name: str, shape: torch.Size, device: torch.device) -> Tensor:
        """Return what `sample` returns for each key, [K, *shape]: a new tensor, which the caller may overwrite."""
        import torch

        return torch.stack([self.sample(key, name, shape, device) for key in keys])


@dataclass(frozen=True)
class PartialPerturbation(Perturbation):
    """A distribution whose directions are summed over all or part of a parameter, without storing any of them."""

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
        """Return base + sum_i c_i z(key_i) for the elements start, start + 1, ... of the parameter `name`.

        Summed in fp32 and rounded once, to the dtype of `out` or of `base`; fp32 without either.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class FactoredPerturbation(Perturbation):
    """A distribution whose direction of a matrix is U V^T: one forward can hold several points of all weights."""

    factored: ClassVar[bool] = True
    portable: ClassVar[bool] = False

    @property
    def one_product(self) -> bool:
        """Whether an update adds its directions to a matrix as one product of all factors, not one after the other."""
        return False

    def factors(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return U [m, r] and V [n, r] of the direction that `sample` returns for a matrix [m, n]: new fp32 tensors."""
        raise NotImplementedError

    def factors_of(
        self, keys: Sequence[NoiseKey], name: str, shape: torch.Size, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return what `factors` returns for each key, U [K, m, r] and V [K, n, r]: new tensors."""
        import torch

        U, V = zip(*(self.factors(key, name, shape, device) for key in keys), strict=True)
        return torch.stack(U), torch.stack(V)


class Basis(NamedTuple):
    """Columns [n, r] over the inputs of a layer, whose weight is stored as [m, n], or `transposed` as [n, m]."""

    columns: Tensor
    transposed: bool


@dataclass(frozen=True)
class ActivationPerturbation(Perturbation):
    """A distribution between bases that the layers' inputs give, at theta in the step's minibatch.

    A step draws after a forward at theta, which is f(theta) for the estimator too. A replay takes that forward again:
    it needs the minibatches, and compares the digest of the bases with which each line of the log ends.
    """

    reads: ClassVar[Reads] = Reads.DATA
    portable: ClassVar[bool] = False
    bases: Mapping[str, Basis] | None = bound()

    def evaluations(self, estimator: Estimator) -> int:
        return 0 if estimator.at_theta else 1

    def basis(self, key: NoiseKey, name: str, inputs: Tensor) -> Tensor:
        """Return a basis [n, r] from the inputs [N, n] of a matrix's layer: a new fp32 tensor.

        Args:
            key: of the step's first query.
        """
        raise NotImplementedError


def advance(rule: Advance, used: int, period: int) -> int:
    """Return the distance from one direction's start to the next.

    `leftover`: the next direction starts where the previous one stopped, `used` places on. `coprime`: the next distance
    that shares no factor with the period, so that every place of the cycle becomes a start before one returns.
    """
    distance = used
    while rule == "coprime" and gcd(distance, period) > 1:
        distance += 1
    return distance


def starts(distance: int, period: int) -> int:
    """Return the number of distinct values of t * distance mod period, t = 0, 1, ...: period / gcd(distance, period).

    t * distance and t' * distance agree mod the period if and only if period / gcd divides t - t'.
    """
    return period // gcd(distance, period)
