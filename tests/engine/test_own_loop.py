"""The names that zo_sweeps.engine gives to a loop of one's own on one's own model."""

from __future__ import annotations

import operator
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zo_sweeps.engine.train  # before the names below: importing a submodule must not hide a function
from zo_sweeps import engine
from zo_sweeps.engine import RGE, SGD, Adam, Full, Gaussian, LoRAFA, Method, Mode, replay, step


def regressor() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


X = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
Y = 2 * X[:, :1] - X[:, 1:2]


def test_a_model_of_ones_own_is_trained_and_replayed_from_its_coefficients() -> None:
    model, log, losses = regressor(), [], []
    space = Full().install(model, [], seed=0)
    method = Method(RGE(q=8), Gaussian(), SGD()).bind(space.params)
    state = method.init(space.params)

    def loss(points: int) -> Tensor:
        return F.mse_loss(model(X), Y).reshape(points)

    for number in range(1, 41):
        estimate, state = step(method, model, space, loss, state, seed=0, step=number, lr=0.03)
        log.append(estimate.coefs)
        losses.append(estimate.loss)
    assert losses[-1] < losses[0] / 4
    again = regressor()
    replay(method, Full().install(again, [], seed=0).params, log, lambda number: 0.03, seed=0)
    assert all(one.equal(two) for one, two in zip(model.parameters(), again.parameters(), strict=True))


def test_a_low_rank_space_takes_several_points_in_one_forward() -> None:
    def trained(mode: Mode) -> list[float]:
        model, losses = regressor(), []
        space = LoRAFA(rank=4).install(model, ["0", "2"], seed=0)
        method = Method(RGE(q=4), Gaussian(), Adam(), mode).bind(space.params)
        state = method.init(space.params)

        def loss(points: int) -> Tensor:
            outputs: Tensor = model(X.repeat(points, 1))
            return (outputs - Y.repeat(points, 1)).square().view(points, -1).mean(1)

        for number in range(1, 4):
            estimate, state = step(method, model, space, loss, state, seed=0, step=number, lr=0.01)
            losses.append(estimate.loss)
        return losses

    assert trained(Mode.OUTER) == pytest.approx(trained(Mode.SEQUENTIAL), rel=1e-4)


def test_the_functions_keep_their_names_and_unknown_ones_are_refused() -> None:
    assert {engine.step.__name__, engine.train.__name__, engine.replay.__name__} == {"step", "train", "replay"}
    assert zo_sweeps.engine.step is step
    assert sys.modules["zo_sweeps.engine.step"].step is step
    assert all(getattr(engine, name) is not None for name in engine.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'stepp'"):
        operator.attrgetter("stepp")(engine)


@pytest.mark.multiprocess
def test_the_names_are_loaded_when_used() -> None:
    code = """\
import sys, zo_sweeps.engine, zo_sweeps.engine.estimators.rge
from zo_sweeps.engine import RGE, SGD, Full, Gaussian, LoRAFA, Mode
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
