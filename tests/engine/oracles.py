"""What a member must compute, with numbers: the checks that a wrong factor, sign, scale or rounding fails.

Each takes a member and raises AssertionError. What it expects is the rule of the axis, or what the member's definition
states in its place (`Estimator.on_linear`, `Perturbation.second_moment`, `Update.last_moves`, ...). Run over every
member, and over wrong ones, by test_oracles.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zo_sweeps.engine.direction import ghat
from zo_sweeps.engine.layers.weight_only import Integers
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.estimator import SCOUTS, Estimator
from zo_sweeps.methods.perturbation import (
    ActivationPerturbation,
    Basis,
    FactoredPerturbation,
    PartialPerturbation,
    Perturbation,
)
from zo_sweeps.methods.points import Estimate, Layout, NoiseKey, Theta
from zo_sweeps.methods.precision import UNITS, Precision, WeightOnlyPrecision
from zo_sweeps.methods.schedule import Schedule
from zo_sweeps.methods.space import InstalledSpace, Space
from zo_sweeps.methods.update import Update

D = 23
CPU = torch.device("cpu")


# Estimators


def estimator(member: Estimator) -> None:
    """The estimate on a linear and on a quadratic f, of losses that are computed in double precision."""
    bound = member.bind(D)
    if hasattr(member, "eps"):
        wider, scales = replace(member, eps=2 * member.eps).bind(D), [point.scale for point in bound.points(5, 1)]
        doubled = [point.scale / 2 for point in wider.points(5, 1)]
        assert doubled == pytest.approx(scales), "points are not as far as eps says"
    draw = torch.Generator().manual_seed(11)
    gradient = torch.randn(D, generator=draw, dtype=torch.double)
    for number in (1, 7):
        points = bound.points(5, number)
        assert len(points) == member.evaluations(D), "not as many points as planned"
        z = _directions(member, [point.key for point in points if point.scale], draw)
        own = z
        if member.gives == SCOUTS:  # their queries follow those of the directions
            own = {key: one for key, one in z.items() if key.query < bound.directions(D)}
        slopes = [float(one @ gradient) for one in own.values()]
        eps = max(abs(point.scale) for point in points)
        assert eps <= bound.reach, "a point is farther than `reach`"
        tolerance = 1e-6 / eps  # losses of size 10 in fp32 over 2 eps, for a member that subtracts them in fp32

        def estimate(f: Callable[[Tensor], Tensor], points: Any = points, z: Any = z) -> Estimate:
            return bound.combine(points, [float(f(point.scale * z.get(point.key, gradient))) for point in points])

        for scale, shift in ((1.0, 0.0), (-3.0, 8.0)):
            found = estimate(lambda move, a=scale, b=shift: a * (gradient @ move) + b)
            expected = member.on_linear([scale * slope for slope in slopes], points)
            _equal(found, own, expected, tolerance, f"on the linear f = {scale:g} g . theta + {shift:g}")
            moves = [point.scale * float(gradient @ z.get(point.key, gradient)) for point in points]
            mean = 0.0 if 0.0 in moves else sum(moves) / len(moves)  # f(theta) itself, where it is evaluated
            wrong = "the loss is neither the mean of the points' losses nor f(theta)"
            assert math.isclose(found.loss, scale * mean + shift, rel_tol=1e-6, abs_tol=1e-6), wrong
        if member.curvature is not None:
            H = torch.randn(D, D, generator=draw, dtype=torch.double)
            H = H @ H.T / D
            found = estimate(lambda move, H=H: gradient @ move + 0.5 * move @ H @ move)
            curved = [
                float(g + member.curvature * eps * one @ H @ one) for g, one in zip(slopes, own.values(), strict=True)
            ]
            _equal(
                found,
                own,
                member.on_linear(curved, points),
                tolerance,
                f"on a quadratic f: curvature is not {member.curvature:g}",
            )


def _directions(member: Estimator, keys: Sequence[NoiseKey], draw: torch.Generator) -> dict[NoiseKey, Tensor]:
    if member.coordinates:  # queries are coordinates
        return {key: math.sqrt(D) * torch.eye(D, dtype=torch.double)[key.query] for key in keys}
    return {key: torch.randn(D, generator=draw, dtype=torch.double) for key in keys}


def _equal(found: Estimate, z: Mapping[NoiseKey, Tensor], coefs: Sequence[float], tolerance: float, where: str) -> None:
    """Compare sum_i w_i z_i with (1/q) sum_i g_i z_i: the mean over directions, not their sum."""
    nothing = torch.zeros(D, dtype=torch.double)
    estimate = sum((weight * z[key] for key, weight in found.terms), nothing)
    expected = sum((g * one for g, one in zip(coefs, z.values(), strict=True)), nothing) / len(z)
    error = float((estimate - expected).norm() / expected.norm())
    assert error < tolerance, f"the estimate is off by {error:.2g} of its size {where}"


# Perturbations

SHAPES = {"a": torch.Size([7]), "layer.W": torch.Size([5, 6]), "b": torch.Size([13]), "c.V": torch.Size([4, 3])}
STEPS = 1500


def begun(member: Perturbation, layout: Layout) -> Perturbation:
    """The distribution of step 1, at parameters of these shapes."""
    draw = torch.Generator().manual_seed(12)
    params = {name: nn.Parameter(torch.randn(shape, generator=draw)) for name, shape in layout.shapes.items()}
    bound = member.bind(layout)
    now = bound.at(params, bound.init(params), 1)
    if not isinstance(now, ActivationPerturbation):
        return now
    key, matrices = NoiseKey(0, 1, 0), [(name, shape) for name, shape in layout.shapes.items() if len(shape) == 2]
    inputs = {name: torch.randn(3, shape[1], generator=draw) for name, shape in matrices}
    return replace(now, bases={name: Basis(now.basis(key, name, rows), False) for name, rows in inputs.items()})


def perturbation(member: Perturbation) -> None:
    """The moments of its directions over seeds and steps, within five standard errors; its sums and factors."""
    layout = Layout(SHAPES, q=3)
    bound = begun(member, layout)
    moments = [bound.second_moment(shape) for shape in layout.shapes.values() for _ in range(shape.numel())]
    if member.coordinates:  # not random: d directions in a row, from anywhere
        z = torch.stack([whole(bound, NoiseKey(0, 5 + t // 3, t % 3), layout) for t in range(layout.d)]).double()
        expected = torch.diag(torch.tensor(moments, dtype=torch.double))
        torch.testing.assert_close(z.T @ z / layout.d, expected, rtol=1e-6, atol=1e-6)
    else:
        keys = [NoiseKey(number, number, number % 3) for number in range(1, STEPS + 1)]
        z = torch.stack([whole(bound, key, layout) for key in keys]).double()
        _within(z, torch.zeros(layout.d), "the mean of z_j is not 0")
        if None not in moments:
            expected = torch.tensor(moments, dtype=torch.double)
            _within(z.square(), expected, "the mean of z_j^2 is not second_moment")
            slope = torch.linspace(-1, 1, layout.d).double() + 0.1
            _within((z @ slope).unsqueeze(1) * z, expected * slope, "elements are correlated: E[z z^T] is not diagonal")
    terms, (name, shape) = ((NoiseKey(3, 2, 0), 0.5), (NoiseKey(3, 2, 1), -2.0)), ("layer.W", SHAPES["layer.W"])
    drawn = [bound.sample(key, name, shape, CPU) for key, _ in terms]
    if isinstance(bound, PartialPerturbation):
        total = sum((weight * z for (_, weight), z in zip(terms, drawn, strict=True)), torch.ones(shape))
        found = bound.combine(terms, name, torch.Size([4, 6]), CPU, base=torch.ones(4, 6), start=6)  # without row 0
        torch.testing.assert_close(found, total[1:], rtol=1e-5, atol=1e-5, msg="`combine` is not the sum of `sample`")
    if isinstance(bound, FactoredPerturbation):
        for (key, _), z in zip(terms, drawn, strict=True):
            U, V = bound.factors(key, name, shape, CPU)
            assert U.shape[1] == V.shape[1], "factors of two ranks"
            torch.testing.assert_close(U @ V.T, z, rtol=1e-5, atol=1e-5, msg="`factors` are not those of `sample`")


def whole(bound: Perturbation, key: NoiseKey, layout: Layout) -> Tensor:
    """z(key) over all parameters, [d]."""
    return torch.cat([bound.sample(key, name, shape, CPU).flatten() for name, shape in layout.shapes.items()])


def _within(draws: Tensor, mean: Tensor, what: str) -> None:
    error = 5 * draws.std(0) / math.sqrt(len(draws)) + 1e-6  # and fp32's rounding, where nothing is random
    assert ((draws.mean(0) - mean).abs() <= error).all(), what


# Updates


class _Known:
    """Directions over integer codes whose estimate is known."""

    def __init__(self) -> None:
        self.whole: dict[str, Tensor] = {}

    def point(self, *_: Any) -> Tensor:
        raise AssertionError("an update makes no points")

    def ghat(self, terms: Any, name: str, codes: Tensor, largest: int, start: int) -> Tensor:
        return self.whole[name].flatten()[start : start + len(codes)].clone()


def update(member: Update) -> None:
    """Every element's move in each of the first three steps, on estimates that are known."""
    lr, noise, known, generator = 0.25, Gaussian(), _Known(), torch.Generator().manual_seed(0)
    params: dict[str, Any] = {}
    whole = Theta.CODES in member.moves
    for name, shape in {"matrix": (4, 5), "vector": (6,)}.items():
        start = torch.randn(shape, generator=generator)
        params[name] = Integers((10 * start).to(torch.int8), 100) if whole else nn.Parameter(start)
    state, seen, coefs = member.init(params), {name: [] for name in params}, []
    for number in (1, 2, 3):
        first, second = (NoiseKey(3, number, query) for query in (0, 1))
        estimate = Estimate(((first, 2.5 / number), (second, -1.25)), (5.0 / number, -2.5), 0.0)
        coefs.append(estimate.coefs)
        known.whole = {name: ghat(estimate, noise, name, torch.empty(p.shape)) for name, p in params.items()}
        before = {name: param.detach().clone().float() for name, param in params.items()}
        given: Any = known if whole else noise
        state = member.apply(params, estimate, given, state, lr)
        for name, param in params.items():
            seen[name].append(known.whole[name].view(param.shape))
            moves = member.last_moves(seen[name], coefs, lr)
            moved = param.detach().float() - before[name]
            wrong = f"step {number} does not move {name} by `last_moves`"
            torch.testing.assert_close(moved, moves.float(), rtol=1e-5, atol=2e-6, msg=wrong)


# Spaces


def space(member: Space, installed: InstalledSpace, arch: Arch, before: Tensor, outputs: Callable[[], Tensor]) -> None:
    """As many values as its definition counts; the model's own outputs before the first step; each parameter counts.

    Args:
        before: the model's outputs before the space was installed.
        outputs: computes them again.
    """
    params = installed.params
    assert sum(param.numel() for param in params.values()) == member.trainable(arch), "d is not the number of values"
    ends = sorted((param.data_ptr(), param.data_ptr() + param.nbytes) for param in params.values())
    assert all(end <= start for (_, end), (start, _) in pairwise(ends)), "a value is counted twice"
    if member.starts_at_model:
        error = float((outputs() - before).abs().max())
        assert error < 2e-5, f"the installed space changes the model's outputs by {error:.2g}"
    with torch.no_grad():
        for param in params.values():  # off values at which another parameter does not matter, such as B = 0
            _shift(param)
        reached = outputs()
        for name, param in params.items():
            here = param.detach().clone()
            _shift(param)
            assert not torch.equal(outputs(), reached), f"{name} changes no output"
            param.copy_(here)


def _shift(param: Tensor) -> None:
    if param.is_floating_point():
        param.add_(0.1 * torch.randn(param.shape, generator=torch.Generator().manual_seed(param.numel())).to(param))
    else:
        param.neg_()  # codes stay in their range


# Precisions


def precision(member: Precision) -> None:
    """Decoded values are the nearest of those that their block has, and within `largest_error` of the weights."""
    out, into = 3, 1024  # whole blocks and groups of every member
    weight = torch.randn(out, into, generator=torch.Generator().manual_seed(4))
    if not isinstance(member, WeightOnlyPrecision):
        error = (weight.to(member.dtype).float() - weight).abs()
        assert (error <= member.unit * weight.abs()).all(), "rounded by more than `unit`"
        return
    assert (member.scales(out, into) > 0) == (Theta.SCALES in member.stores), "`scales` and `stores` differ"
    blocks = member.scales(out, into) or out  # without scales, every row has a table
    weight = weight.view(blocks, -1) * torch.logspace(-2, 2, blocks).unsqueeze(1)
    weight[0] = 0
    layer = nn.Linear(into, out, bias=False, dtype=member.dtype)
    decoded: Tensor = member.stored(layer, weight.view(out, into)).dense()
    decoded = decoded.float().view(blocks, -1)
    largest, error = weight.abs().amax(1, keepdim=True), (decoded - weight).abs()
    rounding = (2 * UNITS[member.format.torch_name] + member.scale_rounding) * largest
    if member.largest_error < math.inf:
        allowed = member.largest_error * largest * (1 + 1e-5) + rounding
        assert (error <= allowed).all(), "off by more than `largest_error`"
    nearest = (weight.unsqueeze(2) - decoded.unsqueeze(1)).abs().amin(2)
    # Some tables' borders are a little off the middle between two codes (bitsandbytes rounds them to 3 digits).
    assert (error <= nearest + 2e-3 * largest + 2 * rounding).all(), "not decoded to the nearest value"


# Schedules


def schedule(member: Schedule) -> None:
    """Rates that are finite, at least 0, and proportional to lr."""
    rates = member.over(0.25, 40)
    for step in range(1, 41):
        assert 0 <= rates(step) < math.inf, "no rate"
        assert math.isclose(member.rate(0.5, step, 40), 2 * rates(step), rel_tol=1e-12), "not proportional to lr"
