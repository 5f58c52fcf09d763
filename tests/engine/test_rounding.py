"""What rounding does to a run: its noise in a step's losses, and the updates that half precision loses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.engine.conftest import TinyModel, make_examples, targets, tiny_model
from zo_sweeps.core.caveats import remark
from zo_sweeps.engine import direction, losses, rounding
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.estimators.es import ES
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.estimators.rge_one_sided import RGEOneSided
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.loss_noise import LossNoise, noise_to_signal
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.rademacher import Rademacher
from zo_sweeps.engine.replay import replay
from zo_sweeps.engine.rounding import ROUNDING, LostUpdates, stochastic
from zo_sweeps.engine.spaces.full import Full
from zo_sweeps.engine.spaces.vera import VeRA
from zo_sweeps.engine.step import Method
from zo_sweeps.engine.step import step as take_step
from zo_sweeps.engine.train import Scores, StepDone, of_batch, train
from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.engine.updates.momentum import Momentum
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.estimator import Estimator
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate, NoiseKey
from zo_sweeps.methods.space import FullModel, InstalledSpace, Space
from zo_sweeps.methods.update import RoundedUpdate, Rounding
from zo_sweeps_bench.precision import expected_correlation
from zo_sweeps_league.perturbations.layers import Layers
from zo_sweeps_league.perturbations.small_weights import SmallWeights
from zo_sweeps_league.updates.sign import Sign

pytestmark = pytest.mark.unit


def test_the_noise_of_a_step_is_the_deviation_of_what_changes_between_two_evaluations_of_its_points() -> None:
    values = iter([[1.0, 3.0], [1.6, 3.4], [1.0, 3.0], [math.inf, 1.0]])
    f = lambda points: torch.tensor(next(values))
    noise, infinite = (LossNoise(f, f, nn.Module(), lambda: 0) for _ in range(2))
    assert noise(2).tolist() == [1.0, 3.0], "the step's own losses are not touched"
    # c(f' - f) = (0.1, -0.1): their deviation is 0.1 sqrt(2), of one evaluation 0.1; c(f) = (-1, 1).
    assert noise.result == pytest.approx((0.1, math.sqrt(2)), rel=1e-5)
    assert noise_to_signal([(0.1, 1.0), (0.7, 1.0)]) == pytest.approx(0.5)
    assert math.isnan(noise_to_signal([(0.0, 0.0)])), "no signal and no noise"
    assert infinite.result is None
    assert infinite(2).tolist() == [1.0, 3.0]
    assert infinite.result is None
    assert [step for step in range(1, 40) if LossNoise.is_measured(step)] == [*range(2, 10), 16, 32]


def estimates(space: Space, dtype: torch.dtype, estimator: Estimator) -> tuple[torch.Tensor, float]:
    """The coefficients of 24 directions, and the noise of their steps over the signal."""
    model = tiny_model(layers=1)
    model.module.to(dtype)
    installed = space.install(model.module, targets(model) if space.layers else [], 0)
    method = Method(estimator, Gaussian(), SGD()).bind(installed.params)
    coefs, measured = [], []
    for number in range(1, 24 // estimator.budget + 1):
        f = of_batch(model, collate(make_examples(6, seed=number), 0), losses.tokens, installed)
        noise = LossNoise(f, f, model.module, lambda: 0.0)
        points = method.estimator.points(0, number)
        values = evaluate(noise, model.module, installed, method.perturbation, points, Mode.SEQUENTIAL)
        coefs.append(list(method.estimator.combine(points, values).coefs))
        assert noise.result is not None
        measured.append(noise.result)
    return torch.tensor(coefs).flatten(), noise_to_signal(measured)


@pytest.mark.parametrize(
    ("space", "dtype", "estimator", "good"),
    [
        (VeRA(), torch.bfloat16, RGE(1, 1e-3), False),
        (VeRA(), torch.bfloat16, RGE(1, 1e-1), True),
        (Full(), torch.float16, RGE(1, 1e-3, clip=100), True),
        (Full(), torch.bfloat16, RGE(1, 1e-4, clip=100), False),
        (Full(), torch.bfloat16, ES(8, 1e-4), False),
        (Full(), torch.bfloat16, ES(8, 1e-2), True),
        (Full(), torch.bfloat16, RGEOneSided(4, 1e-4), False),
    ],
)
def test_estimates_correlate_with_those_of_fp32_as_the_noise_over_the_signal_says(
    space: Space, dtype: torch.dtype, estimator: Estimator, good: bool
) -> None:
    """See `LossNoise`. The Fisher z of the expected correlation rho changes by -rho / (1 - r^2) per unit of log r.

    Variances: 1 / (n - 3) of the z of a correlation over n = 24 directions, 1 / 24 of log r.
    """
    half, ratio = estimates(space, dtype, estimator)
    whole, _ = estimates(space, torch.float32, estimator)
    correlation = float(torch.corrcoef(torch.stack([half, whole]))[0, 1])
    assert 0 < ratio < 1
    expected = expected_correlation(ratio, estimator)
    error = math.sqrt(1 / 21 + 1 / 24 * (expected / (1 - ratio**2)) ** 2)
    assert abs(math.atanh(correlation) - math.atanh(expected)) < 3 * error, (ratio, correlation, expected)
    assert (remark("noise_to_signal", ratio) == "") == good, ratio


@pytest.mark.parametrize("estimator", [RGE(1, 1), RGE(4, 1), RGEOneSided(1, 1), RGEOneSided(4, 1)])
def test_noise_on_every_loss_leaves_the_correlation_that_is_expected(estimator: Estimator) -> None:
    steps, generator = 3000, torch.Generator().manual_seed(0)
    exact, noisy, measured = [], [], []
    for step in range(steps):
        slopes = torch.randn(estimator.budget, generator=generator)
        points = estimator.points(0, step)
        values = torch.tensor([point.scale * float(slopes[point.key.query]) for point in points])
        f = lambda count, exact=values: exact + 0.7 * torch.randn(count, generator=generator)
        noise = LossNoise(f, f, nn.Module(), lambda: 0.0)
        exact.append(slopes)
        noisy.append(torch.tensor(estimator.combine(points, noise(len(points)).tolist()).coefs))
        assert noise.result is not None
        measured.append(noise.result)
    ratio = noise_to_signal(measured)
    correlation, expected = (
        float(torch.corrcoef(torch.stack([torch.cat(exact), torch.cat(noisy)]))[0, 1]),
        (expected_correlation(ratio, estimator)),
    )
    error = math.sqrt((1 + (expected / (1 - ratio**2)) ** 2) / steps)
    assert abs(math.atanh(correlation) - math.atanh(expected)) < 4 * error


def test_the_share_of_lost_updates_is_counted_exactly_in_a_small_parameter() -> None:
    key = NoiseKey(0, 1, 0)
    estimate = Estimate(((key, 1.0),), (1.0,), 0.5)
    param = torch.nn.Parameter(torch.full((1000,), 1.0, dtype=torch.bfloat16), requires_grad=False)
    z = Gaussian().sample(key, "w", param.shape, param.device)
    lost = LostUpdates()
    with lost.around({"w": param}):
        SGD().apply({"w": param}, estimate, Gaussian(), {}, 2**-9)
    # 1 - x rounds to 1 for x in [-2^-8, 2^-9] (ties go to even); the spacing is 2^-7 above 1 and 2^-8 below.
    stays = ((z * 2**-9 >= -(2**-8)) & (z * 2**-9 <= 2**-9)).float().mean()
    assert lost.share(True) == pytest.approx(float(stays), abs=1e-6)
    assert 0.5 < float(stays) < 0.9
    assert math.isnan(lost.share(False)), "nothing was meant to move"
    whole = LostUpdates()
    with whole.around({"w": torch.nn.Parameter(torch.ones(3))}):
        pass
    assert math.isnan(whole.share(True)), "fp32 is not counted"


def test_a_run_in_half_precision_measures_lost_updates_at_steps_1_2_4_and_8() -> None:
    model = tiny_model(layers=1)
    model.module.to(torch.bfloat16)
    batch = collate(make_examples(2), 0)
    space = Full().install(model.module, [], 0)
    events = train(
        Method(RGE(1, 1e-2), Gaussian(), SGD()), model, space, lambda n: batch, losses.tokens, lambda n: 1e-7,
        lambda: Scores(0.0, 0.0, {}), seed=0, steps=9, eval_every=100,
    )  # fmt: skip
    shares = {event.step: event.lost for event in events if isinstance(event, StepDone)}
    assert [step for step, share in shares.items() if not math.isnan(share)] == [1, 2, 4, 8]
    assert all(share > 0.9 for share in shares.values() if not math.isnan(share))


@pytest.mark.parametrize(
    "noise",
    [Gaussian(), Rademacher(), SmallWeights(), Layers(), Layers(dropped=0.5)],
    ids=["nowhere 0", "nowhere 0, signs", "0 in most entries", "0 in most layers", "0 in half the layers"],
)
def test_what_the_directions_of_a_step_leave_as_it_is_is_not_counted_as_lost(noise: Perturbation) -> None:
    class Linears(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(8)).to(torch.bfloat16)

        def forward(self) -> torch.Tensor:
            return sum(layer(torch.ones(1, 16).bfloat16()).double().square().sum() for layer in self.layers).reshape(1)

    torch.manual_seed(0)
    module, lost = Linears(), LostUpdates()
    space = FullModel(module)
    method = Method(RGE(2, 1e-2), noise, SGD()).bind(space.params)
    state, before = method.init(space.params), {name: param.detach().clone() for name, param in space.params.items()}
    drawn = method.at(space.params, state, 1).perturbation
    z = {
        name: torch.stack([drawn.sample(NoiseKey(0, 1, i), name, param.shape, param.device) for i in (0, 1)])
        for name, param in before.items()
    }
    take_step(method, module, space, lambda P: module(), state, seed=0, step=1, lr=2e-5, lost=lost)
    moves = torch.cat([one.any(0).flatten() for one in z.values()])
    stayed = torch.cat([(param == before[name]).flatten() for name, param in space.params.items()])
    assert 0.1 < lost.share(True) < 0.9
    assert lost.share(True) == int((stayed & moves).sum()) / int(moves.sum())


@pytest.mark.parametrize("size", [5, rounding.PROBE, 3 * rounding.PROBE + 7])
def test_an_estimate_is_probed_where_its_parameter_is(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "CHUNK", 1000)
    terms = tuple((NoiseKey(0, 1, query), weight) for query, weight in enumerate((0.7, -1.1)))
    estimate, param = Estimate(terms, (0.7, -1.1), 0.0), torch.zeros(size)
    for noise in (Gaussian(), Constant()):
        found = rounding.probed(estimate, noise, "w", param)
        assert torch.equal(found, rounding.probe(direction.ghat(estimate, noise, "w", param)))


HALVES = (torch.bfloat16, torch.float16)


def stochastically(values: torch.Tensor, dtype: torch.dtype, step: int = 1) -> torch.Tensor:
    out = torch.empty_like(values, dtype=dtype)
    stochastic(values, NoiseKey(0, step, ROUNDING), "w", out=out)
    return out


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("value", [0.3, -0.3, 1.0 + 2**-14, -5e-8, 6e-6, 1000.3])
def test_stochastic_rounding_is_unbiased_and_takes_a_neighbour(value: float, dtype: torch.dtype) -> None:
    n = 1 << 16
    values = torch.full((n,), value)
    rounded = stochastically(values, dtype).double()
    whole = values.double()
    low, high = rounded.min(), rounded.max()
    assert low <= whole[0] <= high
    assert set(rounded.tolist()) == {float(low), float(high)}
    nearest = values.to(dtype).double()[0]
    assert nearest in (low, high)
    error = float((high - low) / 2 / n**0.5)  # at most, of a mean of two values
    assert abs(float(rounded.mean() - whole[0])) < 4 * error


@pytest.mark.parametrize("dtype", HALVES)
def test_stochastic_rounding_keeps_what_the_dtype_holds(dtype: torch.dtype) -> None:
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    held = bits[bits.isfinite()]
    assert torch.equal(stochastically(held.float(), dtype).view(torch.int16), held.view(torch.int16))
    beyond = torch.finfo(dtype).max
    assert stochastically(torch.tensor([1.001 * beyond, -1.001 * beyond]), dtype).tolist() == [beyond, -beyond]


def test_stochastic_rounding_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    values = Gaussian().sample(NoiseKey(0, 1, 0), "v", torch.Size([37, 101]), torch.device("cpu"))
    whole = stochastically(values, torch.bfloat16)
    monkeypatch.setattr(rounding, "CHUNK", 1000)
    assert torch.equal(stochastically(values, torch.bfloat16), whole)
    assert not torch.equal(stochastically(values, torch.bfloat16, step=2), whole)


class Constant(Perturbation):
    """The same direction at every step, so that the drift has one."""

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> torch.Tensor:
        return Gaussian().sample(NoiseKey(0, 0, 0), name, shape, device)


@pytest.mark.parametrize(("update", "lr"), [(SGD, 5e-6), (Adam, 5e-6), (Momentum, 5e-7), (Sign, 5e-6)])
def test_in_bf16_weights_follow_the_meant_updates_if_they_are_rounded_stochastically(
    update: type[RoundedUpdate], lr: float
) -> None:
    names = ("a", "b")

    def moved(dtype: torch.dtype, how: Rounding) -> torch.Tensor:
        shape = torch.Size([60, 50])
        start = {
            n: 0.02 * Gaussian().sample(NoiseKey(1, 1, 0), n, shape, torch.device("cpu")).bfloat16() for n in names
        }
        params = {n: torch.nn.Parameter(w.to(dtype, copy=True), requires_grad=False) for n, w in start.items()}
        noise, rule = Constant(), update(rounding=how)
        state = rule.init(params)
        for step in range(1, 151):
            estimate = Estimate(((NoiseKey(0, step, 0), 1.0),), (1.0,), 0.5)
            state = rule.apply(params, estimate, noise, state, lr)
        return torch.cat([(params[n].float() - start[n].float()).flatten() for n in names])

    meant = moved(torch.float32, Rounding.NEAREST)
    cosine = {how: float(torch.cosine_similarity(moved(torch.bfloat16, how), meant, dim=0)) for how in Rounding}
    assert cosine[Rounding.STOCHASTIC] > 0.9, cosine
    assert cosine[Rounding.NEAREST] < 0.75, cosine


def test_a_replay_of_stochastic_rounding_has_the_same_bits() -> None:
    def fresh() -> tuple[TinyModel, InstalledSpace]:
        model = tiny_model(layers=1)
        model.module.to(torch.bfloat16)
        return model, Full().install(model.module, [], 0)

    batch, rates = collate(make_examples(2), 0), lambda n: 1e-5
    method = Method(RGE(2, 1e-2), Gaussian(), SGD(rounding=Rounding.STOCHASTIC, weight_decay=0.1))
    model, space = fresh()
    events = train(
        method, model, space, lambda n: batch, losses.tokens, rates, lambda: Scores(0.0, 0.0, {}), seed=3, steps=3,
        eval_every=100,
    )  # fmt: skip
    done = [event for event in events if isinstance(event, StepDone)]
    assert all(math.isnan(event.lost) for event in done), "nothing is lost in the mean"
    _, again = fresh()
    backwards = dict(reversed(again.params.items()))
    replay(method, backwards, [event.coefs for event in done], rates, seed=3)
    assert all(torch.equal(again.params[name], param) for name, param in space.params.items())
    _, base = fresh()
    assert any(not torch.equal(base.params[name], param) for name, param in space.params.items())
