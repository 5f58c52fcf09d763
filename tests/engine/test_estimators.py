"""One-sided and coordinate-wise estimates against closed forms; a run is its replay, for every pair of members."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine import contract
from tests.engine.conftest import TinyModel, make_examples, targets
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.estimators.cge import CGE
from zo_sweeps.engine.estimators.es import ES
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.estimators.rge_one_sided import RGEOneSided
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.losses import candidates, token_logprobs
from zo_sweeps.engine.perturbations.coordinate import Coordinate
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.replay import replay
from zo_sweeps.engine.schedules.linear import Linear
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.step import Method, RunState, step
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.space import FullModel

pytestmark = pytest.mark.unit
CPU = torch.device("cpu")
CLIP = {"clip": 0.5}


class Parts(nn.Module):
    """f of four parameters (a vector, two matrices, a scalar's worth), in double precision inside."""

    def __init__(self, f: Callable[[Tensor], Tensor], seed: int = 0) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        for name, shape in {"a": (7,), "W": (3, 4), "b": (2, 3), "c": (1,)}.items():
            # eighths: theta and theta + eps are then exact in fp32 for eps a power of two
            values = torch.randint(-16, 17, shape, generator=draw) / 8
            self.register_parameter(name, nn.Parameter(values))
        self.f = f

    def forward(self) -> Tensor:
        return self.f(flat(self)).reshape(1)


D = 26


def seeing() -> tuple[Parts, list[Tensor]]:
    """A module, and the places at which it is computed."""
    seen: list[Tensor] = []

    def f(theta: Tensor) -> Tensor:
        seen.append(theta.clone())
        return theta.sum()

    return Parts(f), seen


def flat(module: nn.Module) -> Tensor:
    return torch.cat([param.flatten() for param in module._parameters.values()]).double()


def quadratic(seed: int = 3) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    H = torch.randn(D, D, generator=draw, dtype=torch.double)
    H, b = H @ H.T / D, torch.randn(D, generator=draw, dtype=torch.double)
    return lambda t: 0.5 * t @ H @ t + b @ t, H, b


def losses_at(module: nn.Module, method: Method, number: int, seed: int = 7):
    points = method.estimator.points(seed, number)
    values = evaluate(lambda P: module(), module, FullModel(module), method.perturbation, points, Mode.SEQUENTIAL)
    return method.estimator.combine(points, values)


def ghat(module: nn.Module, method: Method, number: int) -> Tensor:
    terms = losses_at(module, method, number).terms
    parts = [
        sum(w * method.perturbation.sample(key, name, p.shape, CPU).double() for key, w in terms).flatten()
        for name, p in module.named_parameters()
    ]
    return torch.cat(parts)


def test_one_sided_evaluates_theta_once_and_itself() -> None:
    module, seen = seeing()
    method = Method(RGEOneSided(3), Gaussian(), SGD())
    points = method.estimator.points(0, 1)
    evaluate(lambda P: module(), module, FullModel(module), Gaussian(), points, Mode.SEQUENTIAL)
    assert len(points) == len(seen) == method.estimator.evaluations(D) == 4
    assert [point.scale for point in points] == [0.0, 1e-3, 1e-3, 1e-3]
    assert torch.equal(seen[0], flat(module).detach())
    assert not any(torch.equal(other, seen[0]) for other in seen[1:])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Mode.SEQUENTIAL, [[0], [1], [2], [3]]),
        (Mode.OUTER, [[0], [1, 2, 3]]),
        (Mode.INNER, [[0, 1], [2], [3]]),
        (Mode.BOTH, [[0, 1, 2, 3]]),
    ],
)
def test_one_sided_points_share_forwards_by_mode(mode: Mode, expected: list[list[int]]) -> None:
    assert mode.groups(RGEOneSided(3).points(0, 1)) == expected


def test_one_sided_losses_do_not_depend_on_the_mode(model: TinyModel) -> None:
    space = LoRAFA(rank=4, alpha=8.0).install(model.module, targets(model), 0)
    batch = collate(make_examples(3), 0)
    points = RGEOneSided(4, 1e-2).points(0, 1)
    found = {
        mode: evaluate(
            lambda P: candidates(token_logprobs(model, batch, copies=P), batch),
            model.module, space, Gaussian(), points, mode,
        )
        for mode in (Mode.SEQUENTIAL, Mode.OUTER, Mode.INNER, Mode.BOTH)
    }  # fmt: skip
    plain = candidates(token_logprobs(model, batch), batch).item()
    for values in found.values():
        assert values == pytest.approx(found[Mode.SEQUENTIAL], abs=2e-6)
        assert values[0] == pytest.approx(plain, abs=2e-6)


def es_on_a_line(
    estimator: ES, number: int, f: Callable[[float], float] = lambda slope: slope
) -> tuple[Tensor, Tensor]:
    """The estimate on f(grad . z), and RGE's of the same directions, [D] in double precision."""
    grad, shape = torch.linspace(-1, 2, D).double(), torch.Size((D,))
    points = estimator.points(3, number)
    z = {p.key: Gaussian().sample(p.key, "w", shape, CPU).double() for p in points}
    losses = [f(p.scale * float(grad @ z[p.key])) for p in points]
    estimates = [one.combine(points, losses) for one in (estimator, RGE(estimator.q, estimator.eps))]
    shaped, plain = (sum(weight * z[key] for key, weight in estimate.terms) for estimate in estimates)
    assert isinstance(shaped, Tensor)
    assert isinstance(plain, Tensor)
    return shaped, plain / torch.tensor(estimates[1].coefs).double().square().mean().sqrt()


@pytest.mark.parametrize("q", [1, 4, 16])
def test_the_norm_of_a_z_scored_estimate_follows_theory(q: int) -> None:
    squares = torch.stack([es_on_a_line(ES(q, 1e-2), number)[0].square().sum() for number in range(1, 801)])
    error = float(squares.std()) / math.sqrt(len(squares))
    assert float(squares.mean()) == pytest.approx(1 + (D - 1) / q, abs=4 * error)
    assert error < 0.05 * (1 + (D - 1) / q)


def test_centered_ranks_are_of_the_order_of_the_losses_alone() -> None:
    estimator = ES(3, 0.5, shape="centered_ranks")
    points = estimator.points(0, 1)
    losses = [0.3, 0.1, 0.2, 0.4, 0.9, 0.3]  # ranks 2.5 0, 1 4, 5 2.5 of 0 to 5
    assert estimator.combine(points, losses).coefs == pytest.approx((0.25, -0.3, 0.25))
    mapped = [math.exp(5 * loss) - 40 for loss in losses]
    assert estimator.combine(points, mapped).coefs == estimator.combine(points, losses).coefs
    assert estimator.combine(points, losses).loss == pytest.approx(2.2 / 6)


@pytest.mark.parametrize("shape", ["zscore", "centered_ranks"])
def test_equal_losses_and_queries_of_lost_peers_have_no_say(shape: str) -> None:
    estimator = ES(3, 0.5, shape=shape)
    points = estimator.points(0, 1)
    assert estimator.combine(points, [0.7] * 6).coefs == (0.0, 0.0, 0.0)
    left = estimator.combine(points[2:], [0.2, 0.4, 0.9, 0.3])
    assert math.isnan(left.coefs[0])
    assert [key.query for key, _ in left.terms] == [1, 2]
    assert left.coefs[1:] == ES(2, 0.5, shape=shape).combine(points[:4], [0.2, 0.4, 0.9, 0.3]).coefs


def test_cge_is_the_gradient_of_a_quadratic() -> None:
    f, H, b = quadratic()
    module = Parts(f)
    method = Method(CGE(eps=0.25), Coordinate(), SGD()).bind(dict(module.named_parameters()))
    assert (method.estimator.budget, method.estimator.evaluations(D)) == (D, 2 * D)
    for number in (1, 2, 9):
        assert torch.allclose(ghat(module, method, number), H @ flat(module).detach() + b, rtol=1e-5, atol=1e-5)


def test_cge_moves_each_coordinate_by_eps() -> None:
    module, seen = seeing()
    method = Method(CGE(eps=0.25), Coordinate(), SGD()).bind(dict(module.named_parameters()))
    points = method.estimator.points(0, 4)
    evaluate(lambda P: module(), module, FullModel(module), method.perturbation, points, Mode.SEQUENTIAL)
    expected = torch.stack([sign * 0.25 * torch.eye(D)[j] for j in range(D) for sign in (1, -1)]).double()
    assert torch.allclose(torch.stack(seen) - flat(module).detach(), expected, atol=1e-6)


def test_a_log_of_another_q_is_refused() -> None:
    with pytest.raises(ValueError, match="step 3 has 1 logged coefficients, but q = 2"):
        RGEOneSided(2).from_log(0, 3, [1.0])


@pytest.mark.parametrize("name", [n for n in contract.names("estimator") if contract.known("estimator", n, {"eps": 0})])
def test_no_estimator_takes_a_scale_of_zero(name: str) -> None:
    with pytest.raises(UserError, match=rf"estimator\.eps of {name} must be above 0, not 0"):
        contract.member("estimator", name, eps=0.0)


def bounded(name: str) -> Any:
    return contract.member("estimator", name, **contract.queries(name, 4), **contract.known("estimator", name, CLIP))


@pytest.mark.parametrize("name", [name for name in contract.names("estimator") if math.isfinite(bounded(name).bound)])
def test_the_bound_of_coefficients_holds_whatever_the_losses_are_and_is_the_least(name: str) -> None:
    estimator, largest = bounded(name), 0.0
    points = estimator.points(3, 1)
    for place in range(len(points)):
        for loss in (1e30, -1e30):
            losses = [0.0] * len(points)
            losses[place] = loss
            largest = max(largest, *map(abs, estimator.combine(points, losses).coefs[: estimator.budget]))
    assert largest == pytest.approx(estimator.bound, rel=1e-12)


@pytest.mark.parametrize("name", contract.names("estimator"))
def test_an_estimator_says_how_the_coefficients_of_a_step_depend_on_each_other(name: str) -> None:
    estimator = contract.member("estimator", name, **contract.queries(name, 4))
    bound = estimator.bind(D)
    points = bound.points(3, 1)
    losses = [math.sin(place + 1) for place in range(len(points))]
    coefs = bound.combine(points, losses).coefs[: bound.budget]
    own = [place for place, point in enumerate(points) if point.key.query == 0 or not point.scale]
    alone = bound.combine([points[place] for place in own], [losses[place] for place in own])
    assert estimator.compares == (alone.coefs[0] != coefs[0])
    assert estimator.centred == (abs(sum(coefs)) < 1e-9 * max(map(abs, coefs)))


def digest(module: nn.Module) -> str:
    return hashlib.blake2b(flat(module).detach().numpy().tobytes()).hexdigest()


@pytest.mark.parametrize(("estimator", "noise"), contract.pairs())
def test_replay_and_resume_have_the_bits_of_the_run(estimator: str, noise: str) -> None:
    f, _, _ = quadratic()
    f = (lambda g: lambda t: torch.tanh(g(t) / 10))(f)
    method = Method(contract.estimator(estimator), contract.member("perturbation", noise), SGD())
    schedule, log, hashes = Linear().over(contract.SHORT_RATES.get(estimator, 1e-2), 6), [], []

    def go_on(module: Parts, state: RunState | None, steps: range) -> None:
        bound = method.bind(dict(module.named_parameters()))
        state = state or bound.init(dict(module.named_parameters()))
        for number in steps:
            found, state = step(
                bound, module, FullModel(module), lambda P: module(), state, seed=4, step=number, lr=schedule(number)
            )
            log.append(found.coefs)
            hashes.append(digest(module))

    module = Parts(f)
    go_on(module, None, range(1, 7))
    assert len(set(hashes)) == 6
    for steps in (1, 4, 6):
        again = Parts(f)
        replay(method, dict(again.named_parameters()), log[:steps], schedule, seed=4)
        assert digest(again) == hashes[steps - 1]
    run = list(log)
    resumed = Parts(f)
    state = replay(method, dict(resumed.named_parameters()), log[:3], schedule, seed=4)
    log.clear()
    go_on(resumed, state, range(4, 7))
    assert digest(resumed) == hashes[5]
    assert log == run[3:]
