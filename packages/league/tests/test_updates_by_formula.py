"""Updates of further papers, against their formulas in plain double precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.engine.test_updates import Vector, estimate_at, plain_ghat, quadratic
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.step import Method, RunState, step
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.points import Estimate
from zo_sweeps.methods.space import FullModel
from zo_sweeps_league.updates.anchored import Anchored
from zo_sweeps_league.updates.conservative import Conservative

pytestmark = pytest.mark.unit


def true_estimate(f: Callable[[Tensor], Tensor], theta: dict[str, Tensor], points) -> Estimate:
    """The two-sided estimate written out in double precision."""
    key = points[0].key
    z = torch.cat([Gaussian().sample(key, n, p.shape, p.device).flatten().double() for n, p in theta.items()])
    flat = torch.cat([p.flatten().double() for p in theta.values()])
    g = (f(flat + 1e-3 * z) - f(flat - 1e-3 * z)).item() / 2e-3
    return Estimate(((key, g),), (g,), 0.0)


def test_an_anchor_holds_theta_where_the_estimate_and_the_decay_are_equal() -> None:
    """Under one estimate g, theta is -g / decay (1 - (1 - lr decay)^t) from its start, in vectors and matrices."""
    module, update, estimate = Vector(quadratic), Anchored(decay=0.5), estimate_at(1)
    params = dict(module.named_parameters())
    state = update.init(params)
    for number in range(1, 41):
        state = update.apply(params, estimate, Gaussian(), state, 0.2)
        if number in (1, 3, 40):
            for name, param in params.items():
                away = plain_ghat(estimate, name, param) / 0.5 * (1 - 0.9**number)
                np.testing.assert_allclose(param.detach().numpy(), 1 - away, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("losses_seen", "decision"),
    [
        ((1.0, 2.0, 3.0), 1),
        ((3.0, 2.0, 1.0), -1),
        ((2.0, 1.0, 3.0), 0),
        ((1.0, 1.0, 1.0), 1),  # of equals: the step, then staying
        ((2.0, 1.0, 1.0), 0),
        ((float("nan"), 1.0, 2.0), 0),
        ((float("inf"), 1.0, float("nan")), 0),
    ],
)
def test_conservative_takes_the_lowest_of_the_three_losses(losses_seen: tuple[float, ...], decision: int) -> None:
    asked = []
    estimate = estimate_at(1)
    chosen = Conservative().choose(estimate, 0.1, lambda scales: (asked.extend(scales), list(losses_seen))[1])
    assert asked == [-0.1, 0.0, 0.1]
    assert chosen.coefs == tuple(decision * g for g in estimate.coefs)
    assert chosen.terms == tuple((key, decision * weight) for key, weight in estimate.terms)


def test_conservative_never_raises_the_loss_and_says_what_it_did_in_the_log() -> None:
    """At a learning rate where SGD overshoots, on a minibatch of its own every step."""
    slopes = torch.linspace(0.5, 8, 40).double()
    module = Vector(lambda theta: (slopes * theta.square()).sum())
    space, method = FullModel(module), Method(RGE(1, 1e-3), Gaussian(), Conservative())
    decisions = set()
    for number in range(1, 40):
        before, theta = module().item(), {n: p.clone() for n, p in space.params.items()}
        estimate, _ = step(method, module, space, lambda P: module(), RunState(), seed=0, step=number, lr=1e-2)
        plain = Method(RGE(1, 1e-3), Gaussian(), SGD())
        points = plain.estimator.points(0, number)
        f_at = []
        for scale in (-1e-2, 0.0, 1e-2):
            copied = Vector(module.f)
            for n, p in copied.named_parameters():
                g = sum(
                    weight * Gaussian().sample(key, n, p.shape, p.device).double()
                    for key, weight in true_estimate(module.f, theta, points).terms
                )
                p.data = (theta[n].double() + scale * g).float()
            f_at.append(copied().item())
        assert module().item() == pytest.approx(min(f_at), rel=1e-4)
        assert module().item() <= before * (1 + 1e-6)
        sign = int(np.sign(estimate.coefs[0] * true_estimate(module.f, theta, points).coefs[0]))
        assert sign == (1, 0, -1)[int(np.argmin(f_at))]
        decisions.add(sign)
    assert {1, 0} <= decisions
