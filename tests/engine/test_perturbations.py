"""Every perturbation: the contract, its moments against theory, and its own definition."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.engine import contract
from tests.engine.contract import LAYOUT, SHAPES
from tests.engine.oracles import begun
from zo_sweeps.engine import noise
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.evaluate import InPlace
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.low_rank import LowRank
from zo_sweeps.engine.perturbations.rademacher import Rademacher
from zo_sweeps.engine.perturbations.uniform import Uniform
from zo_sweeps.engine.step import Method, RunState
from zo_sweeps.engine.step import step as take_step
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.perturbation import FactoredPerturbation, Perturbation
from zo_sweeps.methods.points import Layout, NoiseKey
from zo_sweeps.methods.space import FullModel

pytestmark = pytest.mark.unit
CPU = torch.device("cpu")


@pytest.fixture(params=contract.names("perturbation"))
def perturbation(request: pytest.FixtureRequest) -> Perturbation:
    return begun(contract.member("perturbation", request.param), LAYOUT)


def direction(perturbation: Perturbation, key: NoiseKey, layout: Layout = LAYOUT) -> Tensor:
    """z(key), [d]."""
    parts = [perturbation.sample(key, name, shape, CPU).flatten() for name, shape in layout.shapes.items()]
    return torch.cat(parts)


def test_a_parameters_part_has_its_shape_and_is_new_each_time(perturbation: Perturbation) -> None:
    key = NoiseKey(1, 2, 1)
    for name, shape in SHAPES.items():
        z = perturbation.sample(key, name, shape, CPU)
        assert (z.shape, z.dtype, z.is_contiguous()) == (shape, torch.float32, True)
        before = z.clone()
        z.mul_(3.0).add_(1.0)
        assert torch.equal(perturbation.sample(key, name, shape, CPU), before)


def test_a_number_is_a_parameter_too(perturbation: Perturbation) -> None:
    layout = Layout({"scale": torch.Size([]), "W": torch.Size([3, 4])}, q=2)
    released = contract.known("perturbation", perturbation.name, {"released": True})
    for one in (perturbation, replace(perturbation, **released)):
        assert direction(begun(one, layout), NoiseKey(1, 51, 1), layout).shape == (13,)


def test_order_and_history_do_not_matter(perturbation: Perturbation) -> None:
    keys = [NoiseKey(seed, step, query) for seed in (0, 1) for step in (1, 2, 70) for query in range(3)]
    calls = [(key, name) for key in keys for name in SHAPES]
    forward = {call: perturbation.sample(*call, SHAPES[call[1]], CPU) for call in calls}
    fresh = begun(contract.member("perturbation", perturbation.name).bind(LAYOUT), LAYOUT)
    for call in reversed(calls):
        assert torch.equal(fresh.sample(*call, SHAPES[call[1]], CPU), forward[call]), call


def test_another_query_or_step_is_another_direction(perturbation: Perturbation) -> None:
    first = direction(perturbation, NoiseKey(0, 1, 0))
    for key in (NoiseKey(0, 1, 1), NoiseKey(0, 2, 0), NoiseKey(0, 2, 1)):
        assert not torch.equal(direction(perturbation, key), first), key


def test_another_seed_is_another_direction(perturbation: Perturbation) -> None:
    if not perturbation.coordinates:  # those are not random
        assert not torch.equal(direction(perturbation, NoiseKey(1, 1, 0)), direction(perturbation, NoiseKey(0, 1, 0)))


def test_directions_that_are_drawn_together_are_those_drawn_one_by_one(perturbation: Perturbation) -> None:
    keys = [NoiseKey(1, 51, query) for query in (2, 0, 1)]
    for name, shape in SHAPES.items():
        one_by_one = torch.stack([perturbation.sample(key, name, shape, CPU) for key in keys])
        assert torch.equal(perturbation.samples(keys, name, shape, CPU), one_by_one)
        if isinstance(perturbation, FactoredPerturbation) and len(shape) == 2:
            together = perturbation.factors_of(keys, name, shape, CPU)
            for i, part in enumerate(together):
                assert torch.equal(part, torch.stack([perturbation.factors(key, name, shape, CPU)[i] for key in keys]))


def test_what_inference_mode_has_drawn_can_be_drawn_for_the_update(perturbation: Perturbation) -> None:
    key = NoiseKey(987, 1, 0)  # a seed of its own: what is kept of it is made here
    with torch.inference_mode():
        seen = direction(perturbation, key)
    with torch.no_grad():
        parts = [perturbation.sample(key, name, shape, CPU).mul_(2.0) for name, shape in SHAPES.items()]
    assert torch.equal(torch.cat([part.flatten() for part in parts]), 2 * seen.clone())


def test_threads_do_not_change_it(perturbation: Perturbation) -> None:
    before, key = torch.get_num_threads(), NoiseKey(3, 4, 0)
    layout = Layout({"w": torch.Size([300, 401]), "v": torch.Size([70_001])}, q=1)
    perturbation = begun(perturbation, layout)
    first = direction(perturbation, key, layout)
    try:
        torch.set_num_threads(1 if before > 1 else 2)
        again = direction(begun(perturbation, layout), key, layout)
        # Products of matrices are divided among threads, on some processors with other sums.
        assert torch.equal(again, first) if perturbation.portable else torch.allclose(again, first, atol=1e-5)
    finally:
        torch.set_num_threads(before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", sorted(set(contract.names("perturbation")) - contract.OTHER_BITS_ON_GPU))
def test_a_gpu_draws_the_same_bits(name: str) -> None:
    layout = Layout({"w": torch.Size([300, 401]), "v": torch.Size([7001])}, q=2)
    bound, key = contract.member("perturbation", name).bind(layout), NoiseKey(3, 4, 1)
    for part, shape in layout.shapes.items():
        ours = bound.sample(key, part, shape, torch.device("cuda"))
        assert torch.equal(ours.cpu(), bound.sample(key, part, shape, CPU))


NORMS = [
    pytest.param(name, row, id=" ".join([name, *(str(value) for value in row.options.values())]))
    for name, rows in contract.NORMS.items()
    for row in rows
]


@pytest.mark.parametrize(("name", "expected"), NORMS)
def test_the_norm_of_an_estimate_follows_theory(name: str, expected: contract.Norm) -> None:
    layout = LAYOUT if expected.shapes is None else Layout(expected.shapes, 1)
    bound = contract.member("perturbation", name, **expected.options).bind(layout)
    slope = torch.linspace(-1, 1, layout.d).double() + 0.1
    z = torch.stack([direction(bound, NoiseKey(2, t, 0), layout) for t in range(1, 1501)]).double()
    ratios = ((z @ slope).unsqueeze(1) * z).square().sum(1) / slope.square().sum()  # on a linear f: (z . slope) z
    assert abs(ratios.mean() - expected.ratio) < 5 * ratios.std() / math.sqrt(len(ratios))


def test_rademacher_signs_are_the_bits_of_the_addressed_words() -> None:
    key, count = NoiseKey(0, 1, 2), 1001
    words = [int(word) & 0xFFFFFFFF for word in noise.integers(key, "w", 32)]
    expected = [2 * (words[j // 32] >> j % 32 & 1) - 1 for j in range(count)]
    assert Rademacher().sample(key, "w", torch.Size([count]), CPU).tolist() == expected


def test_rademacher_signs_are_fair_and_uncorrelated() -> None:
    n = 2_000_000
    z = Rademacher().sample(NoiseKey(0, 1, 0), "w", torch.Size([n]), CPU)
    assert abs(z.mean()) < 5 / math.sqrt(n)
    for lag in (1, 2, 8, 31, 32, 1024, 32 * 1024):
        assert abs((z[:-lag] * z[lag:]).mean()) < 5 / math.sqrt(n), lag


def test_uniform_fills_its_interval_and_is_not_scaled() -> None:
    n = 1_000_000
    z = Uniform().sample(NoiseKey(0, 1, 0), "w", torch.Size([n]), CPU).double()
    assert -1 < z.min() < -0.9999
    assert 0.9999 < z.max() < 1
    assert abs(z.mean()) < 5 / math.sqrt(3 * n)
    assert abs(z.square().mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / n)


def test_low_rank_matrices_have_that_rank_and_others_are_gaussian() -> None:
    key = NoiseKey(0, 1, 0)
    Z = LowRank(3, 50).sample(key, "W", torch.Size([40, 30]), CPU).double()
    values = torch.linalg.svdvals(Z)
    assert values[2] > 0.1
    assert values[3] < 1e-5
    shape = torch.Size([17])
    assert torch.equal(LowRank(3).sample(key, "b", shape, CPU), Gaussian().sample(key, "b", shape, CPU))


def test_low_rank_holds_v_for_the_interval_and_draws_u_each_step() -> None:
    member, shape = LowRank(2, interval=4), torch.Size([20, 15])

    def rank_together(one: int, other: int) -> int:
        """2 if both steps have one V: their rows then span one plane."""
        rows = torch.cat([member.sample(NoiseKey(0, step, 0), "W", shape, CPU) for step in (one, other)])
        return int(torch.linalg.matrix_rank(rows.double(), rtol=1e-5))

    assert [rank_together(1, step) for step in (2, 3, 4, 5, 6, 8, 9)] == [2, 2, 2, 4, 4, 4, 4]
    assert rank_together(5, 8) == 2
    columns = torch.cat([member.sample(NoiseKey(0, step, 0), "W", shape, CPU) for step in (1, 2)], dim=1)
    assert torch.linalg.matrix_rank(columns.double(), rtol=1e-5) == 4


PARTS = {"W": torch.Size([8, 6]), "b": torch.Size([5])}


def low_rank_steps(member: LowRank, names: Sequence[str], eps: float, lr: float, steps: int) -> dict[str, Tensor]:
    """The parameters after steps down f = sum of sin(slope * theta), whose curvature makes eps count."""
    params = {name: torch.nn.Parameter(torch.linspace(-1, 1, PARTS[name].numel()).view(PARTS[name])) for name in names}
    module = torch.nn.ParameterDict(params)
    method = Method(RGE(1, eps), member, SGD(), in_place=InPlace()).bind(params)
    for number in range(1, steps + 1):
        f = lambda P: sine({name: param.detach() for name, param in module.items()}).reshape(1)
        take_step(method, module, FullModel(module), f, RunState(), seed=0, step=number, lr=lr)
    return {name: param.detach() for name, param in module.items()}


def sine(theta: Mapping[str, Tensor]) -> Tensor:
    return sum(
        (
            torch.sin(torch.linspace(1, 3, one.numel()).double() * one.double().flatten()).sum()
            for one in theta.values()
        ),
        start=torch.zeros((), dtype=torch.double),
    )


def test_low_rank_steps_are_those_of_lozos_trainer() -> None:
    """By formula: theta +/- eps U V^T and +/- eps z, then theta - lr g U V^T and - lr g z; V is kept for two steps."""
    r, eps, lr, nu = 3, 1e-1, 1e-2, 2
    theta = {name: torch.linspace(-1, 1, shape.numel()).view(shape) for name, shape in PARTS.items()}
    for number in range(1, 6):
        key, first = NoiseKey(0, number, 0), NoiseKey(0, number - (number - 1) % nu, 0)
        U = noise.gaussian(key, "W/U", torch.Size([8, r]))
        V = noise.gaussian(first, "W/V", torch.Size([6, r]))
        z = {"W": U @ V.T, "b": noise.gaussian(key, "b", PARTS["b"])}
        plus, minus = (sine({n: theta[n] + sign * eps * z[n] for n in theta}) for sign in (1, -1))
        g = float(plus - minus) / (2 * eps)
        theta = {name: theta[name] - lr * g * z[name] for name in theta}
    ours = low_rank_steps(LowRank(r, nu, "released"), ["W", "b"], eps, lr, 5)
    for name, value in theta.items():
        assert torch.allclose(ours[name], value, rtol=1e-4, atol=1e-5), name


def test_over_matrices_a_unit_scale_is_the_released_one_with_other_eps_and_rate() -> None:
    r, eps, lr = 3, 1e-1, 1e-2
    released = low_rank_steps(LowRank(r, 2, "released"), ["W"], eps, lr, 4)["W"]
    unit = low_rank_steps(LowRank(r, 2), ["W"], math.sqrt(r) * eps, r * lr, 4)["W"]
    assert torch.allclose(unit, released, rtol=1e-4, atol=1e-5)
