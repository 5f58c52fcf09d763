"""The sphere's directions: their length, their law, and what is kept of them."""

from __future__ import annotations

import math

import pytest
import torch

from tests.engine.contract import LAYOUT, SHAPES, d
from tests.engine.test_perturbations import CPU, direction
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.rademacher import Rademacher
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps_league.perturbations.sphere import Sphere

pytestmark = pytest.mark.unit


def test_sphere_and_rademacher_directions_have_length_root_d_every_time() -> None:
    for distribution in (Sphere().bind(LAYOUT), Rademacher()):
        for step in range(1, 30):
            assert direction(distribution, NoiseKey(0, step, step % 3)).norm() == pytest.approx(math.sqrt(d), rel=1e-6)


def test_the_sphere_is_over_the_whole_vector_not_over_each_parameter() -> None:
    sphere = Sphere().bind(LAYOUT)
    parts = torch.stack([sphere.sample(NoiseKey(0, t, 0), "layer.W", SHAPES["layer.W"], CPU) for t in range(1, 500)])
    squares = parts.double().square().sum((1, 2)) / d  # Beta(30/2, 32/2)
    mean, variance = 30 / 62, 2 * 30 * 32 / (62**2 * 64)
    assert abs(squares.mean() - mean) < 5 * math.sqrt(variance / len(squares))
    assert squares.var() == pytest.approx(variance, rel=0.35)


def test_the_sphere_is_the_gaussian_direction() -> None:
    key = NoiseKey(5, 6, 1)
    g, z = direction(Gaussian(), key), direction(Sphere().bind(LAYOUT), key)
    assert torch.allclose(z, g * math.sqrt(d) / g.norm(), rtol=1e-6)


def test_the_sphere_keeps_one_number_a_direction_of_one_step() -> None:
    sphere = Sphere().bind(LAYOUT)
    for step in range(1, 20):
        for query in range(3):
            direction(sphere, NoiseKey(0, step, query))
    assert len(sphere._factors) == 3


def test_two_runs_of_one_perturbation_share_nothing() -> None:
    first = Sphere().bind(LAYOUT)
    second = first.bind(LAYOUT)
    assert first._factors is not second._factors
