"""The sphere's directions: their length, their law, and what is kept of them."""

from __future__ import annotations

import math

import pytest
import torch

from tests.engine.contract import LAYOUT, SHAPES, d
from tests.engine.test_perturbations import CPU, direction
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.rademacher import Rademacher
from zo_sweeps.methods.points import Estimate, NoiseKey
from zo_sweeps_league.perturbations import sphere
from zo_sweeps_league.perturbations.sphere import Sphere
from zo_sweeps_league.updates.adamezo import AdaMeZO

pytestmark = pytest.mark.unit


def test_sphere_and_rademacher_directions_have_length_root_d_every_time() -> None:
    for distribution in (Sphere().bind(LAYOUT), Rademacher()):
        for step in range(1, 30):
            assert direction(distribution, NoiseKey(0, step, step % 3)).norm() == pytest.approx(math.sqrt(d), rel=1e-6)


def test_the_sphere_is_over_the_whole_vector_not_over_each_parameter() -> None:
    bound = Sphere().bind(LAYOUT)
    parts = torch.stack([bound.sample(NoiseKey(0, t, 0), "layer.W", SHAPES["layer.W"], CPU) for t in range(1, 500)])
    squares = parts.double().square().sum((1, 2)) / d  # Beta(30/2, 32/2)
    mean, variance = 30 / 62, 2 * 30 * 32 / (62**2 * 64)
    assert abs(squares.mean() - mean) < 5 * math.sqrt(variance / len(squares))
    assert squares.var() == pytest.approx(variance, rel=0.35)


def test_the_sphere_is_the_gaussian_direction() -> None:
    key = NoiseKey(5, 6, 1)
    g, z = direction(Gaussian(), key), direction(Sphere().bind(LAYOUT), key)
    assert torch.allclose(z, g * math.sqrt(d) / g.norm(), rtol=1e-6)


def test_the_sphere_keeps_one_number_a_direction_of_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sphere, "KEPT", 5)
    bound = Sphere().bind(LAYOUT)
    for step in range(1, 20):
        direction(bound, NoiseKey(0, step, 0))
    assert [key.step for key, _ in bound._factors] == [15, 16, 17, 18, 19]


def test_directions_that_an_update_draws_again_have_their_norms_no_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """AdaMeZO draws those of h steps for one parameter after the other."""
    bound, passes = Sphere().bind(LAYOUT), 0
    params = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
    update, gaussian, state = AdaMeZO(horizon=4), sphere.noise.gaussian, {"latest": ()}

    def counted(key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> torch.Tensor:
        nonlocal passes
        passes += shape.numel() / d
        return gaussian(key, name, shape, device)

    monkeypatch.setattr(sphere.noise, "gaussian", counted)
    for step in range(1, 9):
        passes = 0.0
        estimate = Estimate(((NoiseKey(0, step, 0), 1.0),), (1.0,), 0.0)
        state = update.apply(params, estimate, bound, state, 1e-3)
    assert passes == pytest.approx(4 + 1), "those of four steps, and the norm of the last"


def test_two_runs_of_one_perturbation_share_nothing() -> None:
    first = Sphere().bind(LAYOUT)
    second = first.bind(LAYOUT)
    assert first._factors is not second._factors
