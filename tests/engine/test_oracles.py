"""Every member against the numbers of its axis, and wrong members, which must fail by them alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine import contract, oracles
from tests.engine.conftest import tiny_model
from tests.engine.spaces_common import arch_of, definition, installed, logits
from tests.engine.test_codes import coded_model
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.perturbations.coordinate import Coordinate
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.low_rank import LowRank
from zo_sweeps.engine.perturbations.pezo_pool import PeZOPool
from zo_sweeps.engine.precisions.int4 import INT4
from zo_sweeps.engine.precisions.squeezellm import SqueezeLLM
from zo_sweeps.engine.schedules.linear import Linear
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.updates.momentum import Momentum
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.estimator import Estimator
from zo_sweeps.methods.points import Estimate, NoiseKey, Point, Theta
from zo_sweeps.methods.space import Space

pytestmark = pytest.mark.unit
FEW = {"kept": 0.0}  # entries outside the codes are no codes


@pytest.mark.parametrize("eps", [1e-3, 0.5])
@pytest.mark.parametrize("q", [1, 3])
@pytest.mark.parametrize("name", contract.names("estimator"))
def test_estimates_of_linear_and_quadratic_functions(name: str, q: int, eps: float) -> None:
    options: Mapping[str, Any] = {**contract.queries(name, q), **contract.known("estimator", name, {"eps": eps})}
    for shape in ("zscore", "centered_ranks"):
        oracles.estimator(
            contract.member("estimator", name, **options, **contract.known("estimator", name, {"shape": shape}))
        )


@pytest.mark.parametrize("name", contract.names("perturbation"))
def test_moments_of_directions(name: str) -> None:
    closed = contract.known("perturbation", name, {"leap": True, "rounding": "none"})  # moments in closed form
    oracles.perturbation(contract.member("perturbation", name, **closed))


@pytest.mark.parametrize("name", contract.zeroth_order_updates())
def test_first_steps_of_updates(name: str) -> None:
    oracles.update(contract.member("update", name))


@pytest.mark.parametrize("name", contract.names("space"))
def test_values_and_first_outputs_of_spaces(name: str) -> None:
    check_space(definition(name))


def check_space(space: Space) -> None:
    plain, codes = tiny_model(), contract.member("precision", "int4", compute="fp32")
    own = space.theta is Theta.FLOATS
    model, member = (plain, space) if own else (coded_model(codes), space.bind(codes))
    before = logits(model)
    oracles.space(member, installed(space, model), arch_of(plain), before, lambda: logits(model))


@pytest.mark.parametrize("name", contract.names("precision"))
def test_errors_of_decoded_weights(name: str) -> None:
    oracles.precision(contract.member("precision", name, **contract.known("precision", name, FEW)))


@pytest.mark.parametrize("name", contract.names("schedule"))
def test_rates_of_schedules(name: str) -> None:
    oracles.schedule(contract.member("schedule", name))


# Wrong members


@dataclass(frozen=True)
class FourPoint(Estimator):
    """(8 (f(z) - f(-z)) - (f(2z) - f(-2z))) / (12 eps) per query: exact up to the fourth derivative; times `factor`."""

    q: int = option(2, "queries")
    eps: float = option(0.5, "scale")
    factor: float = option(1.0, "of the coefficients")

    def evaluations(self, d: int) -> int:
        return 4 * self.q

    def points(self, seed: int, step: int) -> tuple[Point, ...]:
        keys = [NoiseKey(seed, step, query) for query in range(self.q)]
        return tuple(Point(key, scale * self.eps) for key in keys for scale in (1.0, -1.0, 2.0, -2.0))

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        groups = [losses[start : start + 4] for start in range(0, len(losses), 4)]
        coefs = [self.factor * (8 * (a - b) - (c - d)) / (12 * self.eps) for a, b, c, d in groups]
        return Estimate.mean(points[0].key.seed, points[0].key.step, coefs, sum(losses) / len(losses))


@dataclass(frozen=True)
class Changed(RGE):
    """RGE whose weights are changed."""

    q: int = option(3, "queries")
    eps: float = option(0.5, "scale")
    d: int = option(1, "parameters")
    change: Callable[[Changed, int, float], float] = option(lambda: None, "(member, query, weight) -> weight")

    def bind(self, d: int) -> RGE:
        return replace(self, d=d)

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        right = super().combine(points, losses)
        terms = tuple((key, self.change(self, key.query, weight)) for key, weight in right.terms)
        return replace(right, terms=terms)


@dataclass(frozen=True)
class FirstLoss(RGE):
    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        return replace(super().combine(points, losses), loss=losses[0])


@dataclass(frozen=True)
class SquaredScale(RGE):
    """Its points are at eps^2 and its differences are divided by as much."""

    def points(self, seed: int, step: int) -> tuple[Point, ...]:
        return RGE(self.q, self.eps**2).points(seed, step)

    def combine(self, points: Sequence[Point], losses: Sequence[float]) -> Estimate:
        return RGE(self.q, self.eps**2).combine(points, losses)


@dataclass(frozen=True)
class Wider(Gaussian):
    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        return super().sample(key, name, shape, device).mul_(math.sqrt(2))


@dataclass(frozen=True)
class Repeated(Gaussian):
    """One number for two neighbours: each has mean 0 and variance 1."""

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        flat = super().sample(key, name, shape, device).view(-1)
        flat[1::2] = flat[: len(flat) - 1 : 2]
        return flat.view(shape)


@dataclass(frozen=True)
class LargerPool(PeZOPool):
    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        return super().sample(key, name, shape, device).mul_(math.sqrt(2))


@dataclass(frozen=True)
class OtherSums(Gaussian):
    """Sums whose first direction counts twice."""

    def combine(self, terms: Any, *args: Any, **kwargs: Any) -> Tensor:
        return super().combine((terms[0], *terms), *args, **kwargs)


@dataclass(frozen=True)
class OtherFactors(LowRank):
    def factors(self, key: NoiseKey, *args: Any) -> tuple[Tensor, Tensor]:
        U, V = super().factors(key, *args)
        return U, V.flip(1)

    def sample(self, *args: Any) -> Tensor:
        return LowRank(self.rank).sample(*args)


@dataclass(frozen=True)
class Ahead(Coordinate):
    """Every second direction is that of the coordinate before."""

    def sample(self, key: NoiseKey, *args: Any) -> Tensor:
        return super().sample(key._replace(step=key.step - key.step % 2), *args)


@dataclass(frozen=True)
class Dampened(Momentum):
    """m <- momentum m + (1 - momentum) ghat, from the second step on."""

    def apply(self, params: Any, estimate: Estimate, noise: Any, state: Any, lr: float) -> Any:
        if any(m.any() for m in state["m"].values()):
            estimate = replace(estimate, terms=tuple((key, (1 - self.momentum) * w) for key, w in estimate.terms))
        return super().apply(params, estimate, noise, state, lr)


@dataclass(frozen=True)
class Twice(SGD):
    def apply(self, params: Any, estimate: Estimate, noise: Any, state: Any, lr: float) -> Any:
        return super().apply(params, estimate, noise, state, 2 * lr)


@dataclass(frozen=True)
class OneMore(LoRAFA):
    def trainable(self, arch: Arch) -> int:
        return super().trainable(arch) + 1


@dataclass(frozen=True)
class Moved(LoRAFA):
    """B does not start at 0."""

    def install(self, *args: Any) -> Any:
        made = super().install(*args)
        for param in made.params.values():
            param.data.add_(0.1)
        return made


@dataclass(frozen=True)
class Unused(LoRAFA):
    """The last parameter is a copy that no forward reads: d agrees, and it moves nothing."""

    def install(self, *args: Any) -> Any:
        made = super().install(*args)
        *_, name = made.params
        made.params[name] = torch.nn.Parameter(made.params[name].detach().clone(), requires_grad=False)
        return made


@dataclass(frozen=True)
class OtherScales(INT4):
    """Every block is decoded by the scale of the next one."""

    def encode(self, weight: Tensor) -> Any:
        codes = super().encode(weight)
        codes.scales = codes.scales.roll(1)
        return codes


@dataclass(frozen=True)
class Doubled(Linear):
    def rate(self, lr: float, step: int, steps: int) -> float:
        return super().rate(lr, step, steps) * (1 + lr)


@dataclass(frozen=True)
class NextCode(INT4):
    """Every value has the code above its own, where there is one."""

    def encode(self, weight: Tensor) -> Any:
        step = weight.abs().max() / 7
        return super().encode((weight + step).clamp_(max=7 * step))


WRONG: dict[str, tuple[Callable[[], None], str]] = {
    "coefficients twice too large": (
        lambda: oracles.estimator(FourPoint(factor=2.0)),
        "off by 1 of its size on the linear",
    ),
    "off by sqrt(d)": (lambda: changed(lambda m, i, w: w * math.sqrt(m.d)), "on the linear"),
    "off by q": (lambda: changed(lambda m, i, w: w * m.q), "off by 2 of its size on the linear"),
    "biased by eps": (lambda: changed(lambda m, i, w: w + m.eps / m.q), "on the linear"),
    "one query's sign": (lambda: changed(lambda m, i, w: -w if i == 1 else w), "on the linear"),
    "one-sided, said to be two-sided": (lambda: oracles.estimator(OneSidedAsTwo(q=3, eps=0.5)), "on a quadratic f"),
    "a variance of 2": (lambda: oracles.perturbation(Wider()), "z_j\\^2 is not second_moment"),
    "equal neighbours": (lambda: oracles.perturbation(Repeated()), "correlated"),
    "a pool's variance of 2": (lambda: oracles.perturbation(LargerPool()), "z_j\\^2 is not second_moment"),
    "a coordinate twice, another never": (lambda: oracles.perturbation(Ahead()), "not close"),
    "a sum of other directions": (lambda: oracles.perturbation(OtherSums()), "`combine` is not the sum"),
    "factors of another direction": (lambda: oracles.perturbation(OtherFactors()), "`factors` are not"),
    "another second step": (lambda: oracles.update(Dampened()), "step 2 does not move"),
    "outputs that installing changes": (lambda: check_space(Moved(rank=4, alpha=8.0)), "changes the model's outputs"),
    "a parameter without effect": (lambda: check_space(Unused(rank=4, alpha=8.0)), "changes no output"),
    "another block's scale": (lambda: oracles.precision(OtherScales(compute="fp32")), "largest_error"),
    "a rate that is not proportional": (lambda: oracles.schedule(Doubled()), "not proportional to lr"),
    "points at another scale": (lambda: oracles.estimator(SquaredScale(q=3, eps=0.5)), "not as far as eps says"),
    "the loss of the first point": (lambda: oracles.estimator(FirstLoss(q=3, eps=0.5)), "the loss is neither"),
    "twice the step": (lambda: oracles.update(Twice()), "by `last_moves`"),
    "d + 1": (lambda: check_space(OneMore(rank=4, alpha=8.0)), "d is not the number"),
    "the next code": (lambda: oracles.precision(NextCode(compute="fp32")), "largest_error"),
    "the next code, no bound stated": (
        lambda: oracles.precision(Unbounded(compute="fp32")),
        "not decoded to the nearest",
    ),
}


@dataclass(frozen=True)
class OneSidedAsTwo(contract.kind("estimator", "rge_one_sided")):
    curvature = 0.0


@dataclass(frozen=True)
class Unbounded(NextCode):
    largest_error = math.inf


def changed(change: Callable[[Changed, int, float], float]) -> None:
    oracles.estimator(Changed(change=change))


def test_a_right_estimator_of_four_points_passes() -> None:
    oracles.estimator(FourPoint())
    changed(lambda member, query, weight: weight)


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_member_fails(what: str) -> None:
    check, message = WRONG[what]
    with pytest.raises(AssertionError, match=message):
        check()


def test_a_code_book_with_another_order_fails() -> None:
    with pytest.raises(AssertionError, match="not decoded to the nearest"):
        oracles.precision(Farther(kept=0.0, sensitivity="none"))


@dataclass(frozen=True)
class Farther(SqueezeLLM):
    """Values are encoded as if they were larger: some get the next of the row's table."""

    def encode(self, weight: Tensor) -> Any:
        codes = super().encode(weight)
        codes.table.add_(0.25 * weight.abs().max())
        return codes
