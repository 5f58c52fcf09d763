"""RGE against closed forms and MeZO's algorithm written out plainly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.step import Method, RunState, step
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import FullModel

pytestmark = pytest.mark.unit


class Vector(nn.Module):
    """f(theta) of one parameter vector, in double precision inside."""

    def __init__(self, theta: Tensor, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.theta = nn.Parameter(theta)
        self.f = f

    def forward(self) -> Tensor:
        return self.f(self.theta).reshape(1)


def test_a_step_descends_on_a_quadratic() -> None:
    module = Vector(torch.ones(20), lambda t: t.double().square().sum())
    method = Method(RGE(4, 1e-3), Gaussian(), SGD())
    space, state, losses = FullModel(module), RunState(), []
    for number in range(1, 301):
        estimate, state = step(method, module, space, lambda P: module(), state, seed=0, step=number, lr=5e-3)
        losses.append(estimate.loss)
    assert losses[-1] < 1e-2 * losses[0]


def mezo_algorithm_2(
    theta: Tensor, f: Callable[[Tensor], float], eps: float, lr: float, draw: Callable[[], list[Tensor]]
):
    """MeZO's algorithm with q queries, as printed: perturb in place, restore, update; `draw` gives the step's z's."""
    directions = draw()
    grads = []
    for z in directions:
        theta += eps * z
        plus = f(theta)
        theta -= 2 * eps * z
        minus = f(theta)
        theta += eps * z
        grads.append((plus - minus) / (2 * eps))
    for g, z in zip(grads, directions, strict=True):
        theta -= (lr / len(directions)) * g * z


@pytest.mark.parametrize("q", [1, 3])
def test_twenty_steps_are_those_of_mezos_algorithm(q: int) -> None:
    generator = torch.Generator().manual_seed(1)
    W = torch.randn(30, 16, generator=generator)
    start = torch.randn(16, generator=generator)
    f = lambda t: torch.tanh(W @ t).square().mean()
    module = Vector(start.clone(), f)
    method = Method(RGE(q, 1e-3), Gaussian(), SGD())
    plain, space, state = start.double(), FullModel(module), RunState()
    for number in range(1, 21):
        _, state = step(method, module, space, lambda P: module(), state, seed=5, step=number, lr=1e-2)
        keys = [NoiseKey(5, number, i) for i in range(q)]
        draw = lambda keys=keys: [Gaussian().sample(k, "theta", start.shape, start.device).double() for k in keys]
        mezo_algorithm_2(plain, lambda t: float(f(t.float())), 1e-3, 1e-2, draw)
    # a loss is good to 6e-8 of itself, divided by 2 eps: 1e-4 a projected gradient, times lr and steps
    assert (module.theta.double() - plain).abs().max() < 20 * 1e-2 * 2e-4 * 4


def test_theta_is_not_written_while_f_is_evaluated() -> None:
    theta = torch.randn(1000)
    module = Vector(theta.clone(), lambda t: t.square().sum())
    for number in range(50):
        evaluate(lambda P: module(), module, FullModel(module), Gaussian(), RGE(2).points(0, number), Mode.SEQUENTIAL)
    assert torch.equal(module.theta, theta)
    assert isinstance(module.theta, nn.Parameter)


def test_theta_is_put_back_when_f_raises() -> None:
    theta = torch.randn(10)
    module = Vector(theta.clone(), lambda t: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluate(lambda P: module(), module, FullModel(module), Gaussian(), RGE().points(0, 1), Mode.SEQUENTIAL)
    assert module._parameters["theta"] is module.theta
    assert torch.equal(module.theta, theta)


def test_a_non_finite_loss_stops_before_the_update_and_says_where() -> None:
    theta = torch.ones(4)
    module = Vector(theta.clone(), lambda t: torch.log(-t.sum()))
    with pytest.raises(DivergedError, match=r"non-finite loss at step 9, seed 3, query 0: losses \[nan, nan\]"):
        step(
            Method(RGE(), Gaussian(), SGD()),
            module,
            FullModel(module),
            lambda P: module(),
            RunState(),
            seed=3,
            step=9,
            lr=1.0,
        )
    assert torch.equal(module.theta, theta)


@pytest.mark.parametrize(("mode", "forwards"), [(Mode.SEQUENTIAL, 8), (Mode.OUTER, 2), (Mode.INNER, 4), (Mode.BOTH, 1)])
def test_modes_group_the_points_as_stated(mode: Mode, forwards: int) -> None:
    points = RGE(4).points(0, 1)
    found = mode.groups(points)
    assert len(found) == forwards
    assert sorted(i for group in found for i in group) == list(range(8))


def test_log_of_another_q_is_refused() -> None:
    with pytest.raises(ValueError, match="step 3 has 1 logged coefficients, but q = 2"):
        RGE(2).from_log(0, 3, [1.0])
