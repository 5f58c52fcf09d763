"""Integer codes that are trained: rounding, directions, QuZO's and QES's updates, replay, and the space of codes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.engine import contract
from tests.engine.conftest import TinyModel, make_examples, targets, tiny_model
from tests.engine.spaces_common import LINEAR, arch_of
from tests.engine.test_baselines import outcome_of, trials
from tests.engine.test_codes import SHAPES, coded_model, layer_of, objective_of, precision_of, weight_of
from zo_sweeps.core.events import ScoredDev
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.engine import losses, noise
from zo_sweeps.engine.batch import Batch, collate
from zo_sweeps.engine.direction import ghat_parts, moved
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.estimators.rge_one_sided import RGEOneSided
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.layers import weight_only
from zo_sweeps.engine.layers.weight_only import Integers, TrainedCodes
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.quantized import Quantized
from zo_sweeps.engine.replay import rebuild
from zo_sweeps.engine.rounding import ROUNDING, whole
from zo_sweeps.engine.schedules.linear import Linear
from zo_sweeps.engine.spaces.codes import Codes
from zo_sweeps.engine.step import Method, step
from zo_sweeps.engine.train import Scores, StepDone, train
from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.engine.updates.error_feedback import ErrorFeedback
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate, Layout, NoiseKey, Point, Theta
from zo_sweeps.methods.update import Rounding, State, Update

pytestmark = pytest.mark.unit
MOVABLE = [name for name in contract.names("precision") if Theta.CODES in contract.kind("precision", name).stores]
QUZO, QES = SGD(rounding=Rounding.STOCHASTIC), ErrorFeedback()
METHODS = {"quzo": (True, QUZO), "qes": (False, QES)}
ALIKE = (("quzo", "int4"), ("qes", "int8"))  # for the plain algorithm


def method_of(name: str, estimator: Any = None) -> Method:
    independent, update = METHODS[name]
    return Method(estimator or RGE(2, 0.8), Quantized(independent), update)


def codes_of(shape: tuple[int, ...], largest: int, seed: int = 0) -> Integers:
    generator = torch.Generator().manual_seed(seed)
    return Integers(torch.randint(-largest, largest + 1, shape, generator=generator, dtype=torch.int8), largest)


# Rounding


@pytest.mark.parametrize("value", [0.3, -0.3, 2.75, -7.0, 1e-3, -126.999])
def test_rounding_to_integers_is_unbiased_and_takes_a_neighbour(value: float) -> None:
    n = 1 << 16
    values = torch.full((n,), value)
    rounded = whole(values, NoiseKey(0, 1, 0), "w", 0).double()
    assert set(rounded.tolist()) <= {math.floor(values[0]), math.ceil(values[0])}
    p = abs(float(values[0])) % 1
    assert abs(rounded.mean() - float(values[0])) <= 5 * math.sqrt(p * (1 - p) / n)


def test_rounding_to_integers_is_odd_and_addressed() -> None:
    values, key = 3 * torch.randn(5000, generator=torch.Generator().manual_seed(0)), NoiseKey(0, 1, 0)
    rounded = whole(values, key, "w", 0)
    assert torch.equal(whole(-values, key, "w", 0), -rounded)
    assert torch.equal(whole(values[1777:], key, "w", 1777), rounded[1777:])
    for other in (NoiseKey(1, 1, 0), NoiseKey(0, 2, 0), NoiseKey(0, 1, 1), NoiseKey(0, 1, ROUNDING)):
        assert not torch.equal(whole(values, other, "w", 0), rounded)
    assert not torch.equal(whole(values, key, "v", 0), rounded)


# Directions


class Grid(nn.Module):
    """f of integer codes, in double precision."""

    def __init__(self, codes: Integers, f: Any) -> None:
        super().__init__()
        self.codes, self.f = codes, f

    def forward(self) -> Tensor:
        return self.f(self.codes.double().flatten()).reshape(1)


class OfGrid(TrainedCodes):
    """The codes of a `Grid` as a space."""

    def __init__(self, module: Grid) -> None:
        self.params = {"codes": module.codes}


def slope_and_curvature(d: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    half = torch.randn(d, d, generator=generator, dtype=torch.float64)
    return torch.linspace(-1, 1, d).double() + 0.1, half + half.t()


@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize("eps", [0.3, 2.0])
def test_the_mean_estimate_is_the_gradient_times_its_factor(eps: float, independent: bool) -> None:
    """Two-sided differences of a quadratic are exact: E[ghat] = E[u u'^T] / eps^2 grad f."""
    d, trials = 12, 1000
    slope, curvature = slope_and_curvature(d)
    theta = codes_of((d,), 3)
    theta.largest = 127  # far from the ends
    f = lambda w: w @ slope + 0.05 * w @ curvature @ w
    gradient = slope + 0.1 * curvature @ theta.double()
    module = Grid(theta, f)
    space, method = OfGrid(module), Method(RGE(1, eps), Quantized(independent), QUZO).bind({"codes": theta})
    estimates = []
    for number in range(1, trials + 1):
        points = method.estimator.points(5, number)
        values = evaluate(lambda P: module(), module, space, method.perturbation, points, Mode.SEQUENTIAL)
        estimate = method.estimator.combine(points, values)
        ((_, _, ghat),) = ghat_parts(estimate, method.perturbation, "codes", theta)
        estimates.append(ghat.double())
    found = torch.stack(estimates)
    x = np.linspace(-9, 9, 2_000_001) * eps  # E[p (1 - p)], p = frac(eps |g|), by the trapezoidal rule
    p, density = np.abs(x) % 1, np.exp(-((x / eps) ** 2) / 2)
    factor = 1.0 if independent else 1 + float((p * (1 - p) * density).sum() / density.sum()) / eps**2
    error = (found.mean(0) - factor * gradient).abs()
    assert (error < 5 * found.std(0) / math.sqrt(trials)).all()
    if not independent:
        v = (factor - 1) * eps**2
        assert v == pytest.approx(1 / 6 if eps > 0.5 else math.sqrt(2 / math.pi) * eps - eps**2, rel=0.01)


def plain_direction(key: NoiseKey, eps: float, name: str, rounding: str, shape: torch.Size) -> np.ndarray:
    """Q(eps g), element by element."""
    g = noise.gaussian(key, name, shape).flatten().tolist()
    u = noise.uniform(key, f"{name}/{rounding}", torch.Size([len(g)])).tolist()
    rounded = []
    for gaussian, chance in zip(g, u, strict=True):
        x = float(np.float32(eps) * np.float32(gaussian))
        size = math.floor(abs(x)) + (chance < abs(x) - math.floor(abs(x)))
        rounded.append(int(math.copysign(size, x)) if size else 0)
    return np.array(rounded)


@pytest.mark.parametrize("largest", [7, 127])
@pytest.mark.parametrize("eps", [0.4, 3.0])
def test_points_move_codes_by_integers_and_mask_those_that_would_leave(eps: float, largest: int) -> None:
    theta, key = codes_of((40, 37), largest), NoiseKey(2, 5, 1)
    noise_of = Quantized().bind(Layout({"w": theta.shape}, 1, eps=eps))
    u = plain_direction(key, eps, "w", "points", theta.shape)
    here, masked = theta.numpy().astype(int).flatten(), 0
    for sign in (1, -1):
        there = here + sign * u
        masked += (abs(there) > largest).sum()
        expected = np.where(abs(there) > largest, here, there)
        found = moved(noise_of, Point(key, sign * eps), "w", theta)
        assert found.dtype == torch.int8
        assert np.array_equal(found.numpy().flatten(), expected)
    assert masked
    assert np.array_equal(noise_of.sample(key, "w", theta.shape, theta.device).numpy().flatten() * eps, u)


@pytest.mark.parametrize("at_once", [1, 7, 100])
@pytest.mark.parametrize("independent", [True, False])
def test_chunks_change_no_bit(independent: bool, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = torch.Size([11, 23])
    perturbation = Quantized(independent).bind(Layout({"w": shape}, 2, eps=0.8))
    terms = tuple((NoiseKey(0, 1, query), 0.37 * (query - 0.6)) for query in range(2))
    estimate, results = Estimate(terms, (0.0, 0.0), 0.0), []
    for size in (1 << 20, at_once):
        monkeypatch.setattr(weight_only, "ON_CPU", size)
        found = [moved(perturbation, Point(key, s), "w", codes_of(shape, 7)) for key, _ in terms for s in (0.8, -0.8)]
        for update in (QUZO, SGD(rounding=Rounding.STOCHASTIC, weight_decay=0.3), ErrorFeedback(0.9)):
            codes = codes_of(shape, 7)
            state = update.init({"w": codes})
            for _ in range(3):
                update.apply({"w": codes}, estimate, perturbation, state, 0.9)
            found += [codes.detach(), *state.get("residual", {}).values()]
        results.append(found)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# Updates


class Given(Perturbation):
    """A direction of ones: ghat = the weight."""

    def point(self, point: Point, name: str, codes: Tensor, largest: int, start: int) -> Tensor:
        raise NotImplementedError

    def ghat(
        self, terms: Sequence[tuple[NoiseKey, float]], name: str, codes: Tensor, largest: int, start: int
    ) -> Tensor:
        return torch.full(codes.shape, sum(weight for _, weight in terms))


def pushed(update: Update, codes: Integers, ghat: float, lr: float, steps: int) -> State:
    state = update.init({"w": codes})
    for number in range(1, steps + 1):
        estimate = Estimate(((NoiseKey(0, number, 0), ghat),), (ghat,), 0.0)
        state = update.apply({"w": codes}, estimate, Given(), state, lr)
    return state


def zeros(n: int, largest: int = 127) -> Integers:
    return Integers(torch.zeros(n, dtype=torch.int8), largest)


def test_a_stochastically_rounded_step_has_the_mean_of_the_step() -> None:
    n, steps, x = 1 << 14, 20, 0.03
    codes = zeros(n)
    pushed(QUZO, codes, 0.3, 0.1, steps)
    assert abs(codes.double().mean() + steps * x) < 5 * math.sqrt(steps * x * (1 - x) / n)
    decayed = Integers(torch.full((n,), 100, dtype=torch.int8), 127)
    pushed(SGD(rounding=Rounding.STOCHASTIC, weight_decay=0.004), decayed, 0.0, 0.1, 1)
    assert abs(decayed.double().mean() - 100 * (1 - 4e-4)) < 5 * math.sqrt(0.04 * 0.96 / n)


@pytest.mark.parametrize(("x", "moves"), [(0.049, False), (0.051, True)])
def test_a_decaying_residual_moves_a_code_from_half_of_what_decays(x: float, moves: bool) -> None:
    codes = zeros(3)
    residual = pushed(ErrorFeedback(decay=0.9), codes, 1.0, x, 200)["residual"]["w"]
    assert bool((codes < 0).all()) == moves
    if not moves:
        torch.testing.assert_close(residual.float(), torch.full((3,), -x / 0.1), rtol=1e-2, atol=0)


def test_without_decay_no_part_of_a_step_is_lost() -> None:
    x = 1 / 128  # held exactly by the residual's dtype
    for steps in (63, 64, 65, 300):
        codes = zeros(3)
        residual = pushed(ErrorFeedback(decay=1.0), codes, -1.0, x, steps)["residual"]["w"]
        assert torch.equal(codes + residual.float(), torch.full((3,), steps * x))
        assert residual.abs().max() <= 0.5


@pytest.mark.parametrize("update", [QUZO, QES])
def test_codes_stay_in_their_range_at_any_learning_rate(update: Update) -> None:
    for largest in (7, 127):
        for lr in (0.7, 50.0, 1e30):
            for ghat in (1.0, -1.0):
                codes = codes_of((500,), largest)
                state = pushed(update, codes, ghat, lr, 30)
                assert codes.abs().max() <= largest
                for residual in state.get("residual", {}).values():
                    assert residual.abs().max() <= 1.5


def test_a_step_out_of_the_range_is_clipped_or_left_out_and_owed() -> None:
    codes = Integers(torch.tensor([7, 5, -7], dtype=torch.int8), 7)
    pushed(QUZO, codes, -1.0, 4.0, 1)
    assert codes.tolist() == [7, 7, -3]
    codes = Integers(torch.tensor([7, 5, -7], dtype=torch.int8), 7)
    state = pushed(QES, codes, -1.0, 4.25, 1)
    assert codes.tolist() == [7, 5, -3]
    assert state["residual"]["w"].tolist() == [1.5, 1.5, 0.25]


@pytest.mark.parametrize(
    ("perturbation", "update", "named"),
    [(Gaussian(), QUZO, "gaussian"), (Quantized(), Adam(), "adam"), (Quantized(), SGD(), "sgd")],
)
def test_integer_codes_are_bound_to_members_that_keep_them_integers(
    perturbation: Perturbation, update: Update, named: str
) -> None:
    with pytest.raises(ValueError, match=f"do not stay integers under .* '{named}'"):
        Method(RGE(), perturbation, update).bind({"w": zeros(3)})


# The algorithms, against plain references


def plain_quzo(
    codes: dict[str, np.ndarray], log: list[tuple[float, ...]], eps: float, lr: float, largest: int, seed: int
) -> None:
    """Codes <- codes - Q3(lr mean_i mu_i u_i2 / eps): every element by itself, in double precision."""
    for number, mus in enumerate(log, start=1):
        for name, theta in codes.items():
            shape = torch.Size(theta.shape)
            step = np.zeros(theta.shape)
            for query, mu in enumerate(mus):
                u = plain_direction(NoiseKey(seed, number, query), eps, name, "update", shape).reshape(shape)
                sides = (abs(theta + u) <= largest).astype(int) + (abs(theta - u) <= largest)
                step += lr * mu / len(mus) * u / eps * sides / 2
            chance = noise.uniform(NoiseKey(seed, number, ROUNDING), name, shape).double().numpy()
            size = np.floor(abs(step)) + (chance < abs(step) - np.floor(abs(step)))
            theta[...] = np.clip(theta - np.sign(step) * size, -largest, largest)


def plain_qes(
    codes: dict[str, np.ndarray], log: list[tuple[float, ...]], eps: float, lr: float, largest: int, seed: int
) -> None:
    """The released code's update with the full residual: members +u and -u with coefficients c and -c."""
    residuals = {name: np.zeros(theta.shape, dtype=np.float16) for name, theta in codes.items()}
    for number, cs in enumerate(log, start=1):
        for name, theta in codes.items():
            shape = torch.Size(theta.shape)
            step = np.zeros(theta.shape)
            for query, c in enumerate(cs):
                u = plain_direction(NoiseKey(seed, number, query), eps, name, "points", shape).reshape(shape)
                for sign in (1, -1):
                    there = theta + sign * u
                    masked = np.where(abs(there) > largest, 0, sign * u)
                    step -= lr * (sign * c) / (2 * len(cs)) * masked / eps
            step += 0.9 * residuals[name].astype(float)
            delta = np.round(step)
            delta = np.where(abs(theta + delta) > largest, 0, delta)
            theta += delta.astype(int)
            residuals[name] = np.clip(step - delta, -1.5, 1.5).astype(np.float16)


PLAIN = {"quzo": plain_quzo, "qes": plain_qes}
STEPS = 8


def batch_of(number: int) -> Batch:
    return collate([make_examples(8)[number % 8]], pad_id=0)


def of_codes(model: TinyModel, layers: Sequence[str] = LINEAR) -> Any:
    return Codes().install(model.module, targets(model, tuple(layers)), 0)


def run(
    method: Method, model: TinyModel, space: Any, lr: float, log: Sequence[tuple[float, ...]] = ()
) -> Iterator[StepDone]:
    events = train(
        method, model, space, batch_of, losses.candidates, Linear().over(lr, STEPS), lambda: Scores(0.0, 0.0, {}),
        seed=3, steps=STEPS, eval_every=STEPS, log=log,
    )  # fmt: skip
    return (event for event in events if isinstance(event, StepDone))


@pytest.mark.parametrize(
    ("name", "coded"),
    [  # each algorithm, and each format, once
        pytest.param(name, coded, marks=pytest.mark.long if (name, coded) in ALIKE else ())
        for name in METHODS
        for coded in MOVABLE
    ],
)
def test_each_step_is_that_of_the_plain_algorithm(name: str, coded: str) -> None:
    """Integers are compared exactly, from the coefficients of the run; these, with losses of decoded weights."""
    q, eps, lr, precision = 3, 0.8, {"int8": 30.0, "int4": 3.0}[coded], precision_of(coded)
    method, model = method_of(name, RGE(q, eps)), coded_model(precision)
    space = of_codes(model)
    largest = next(iter(space.params.values())).largest
    codes = {key: param.numpy().astype(int) for key, param in space.params.items()}
    before = {key: value.copy() for key, value in codes.items()}
    scales = {key: model.module.get_submodule(key.removesuffix(".codes")).codes.scales.clone() for key in codes}
    bound = method.bind(space.params)
    state = bound.init(space.params)
    log: list[tuple[float, ...]] = []
    for number in range(1, 5):
        reference = coded_model(precision)
        batch = batch_of(number)
        f = lambda P, m=model, b=batch: losses.candidates(losses.token_logprobs(m, b, P), b)
        expected = []
        for query in range(q):
            values = []
            for sign in (1, -1):
                for key, theta in codes.items():
                    u = plain_direction(NoiseKey(3, number, query), eps, key, "points", torch.Size(theta.shape))
                    there = theta + sign * u.reshape(theta.shape)
                    there = np.where(abs(there) > largest, theta, there)
                    layer = reference.module.get_submodule(key.removesuffix(".codes"))
                    layer.codes.values = layer.codes.pack(torch.tensor(there, dtype=torch.int8))
                values.append(float(losses.candidates(losses.token_logprobs(reference, batch, 1), batch)[0]))
            expected.append((values[0] - values[1]) / (2 * eps))
        estimate, state = step(bound, model.module, space, f, state, seed=3, step=number, lr=lr)
        assert estimate.coefs == pytest.approx(expected, abs=1e-5)
        log.append(estimate.coefs)
        codes = {key: value.copy() for key, value in before.items()}
        PLAIN[name](codes, log, eps, lr, largest, 3)
        for key, param in space.params.items():
            assert param.dtype == torch.int8
            assert np.array_equal(param.numpy(), codes[key]), (number, key)
    assert sum((codes[key] != before[key]).sum() for key in codes) > 100
    for key, kept in scales.items():
        assert torch.equal(model.module.get_submodule(key.removesuffix(".codes")).codes.scales, kept)


@pytest.mark.parametrize(
    ("name", "coded", "estimator"),
    [
        ("quzo", "int8", RGE(2, 0.8)),
        ("quzo", "int4", RGEOneSided(2, 0.8)),
        ("qes", "int8", RGEOneSided(2, 0.8)),
        ("qes", "int4", RGE(2, 0.8)),
    ],
)
def test_replay_and_resume_have_the_bits_of_the_run(name: str, coded: str, estimator: Any) -> None:
    lr, precision, method = 3.0, precision_of(coded), method_of(name, estimator)
    model = coded_model(precision)
    space = of_codes(model)
    base = {key: param.detach().clone() for key, param in space.params.items()}
    log, trail = [], []
    for event in run(method, model, space, lr):
        log.append(event.coefs)
        trail.append({key: param.detach().clone() for key, param in space.params.items()})
    assert any(not torch.equal(trail[-1][key], base[key]) for key in base)
    for steps in (0, 1, 5, STEPS):
        again = of_codes(coded_model(precision))
        state = rebuild(method, again, log[:steps], Linear().over(lr, STEPS), seed=3)
        expected = trail[steps - 1] if steps else base
        assert all(torch.equal(again.params[key], param) for key, param in expected.items()), steps
    whole_state = state
    model = coded_model(precision)
    resumed = of_codes(model)
    assert [event.coefs for event in run(method, model, resumed, lr, log[:5])] == log[5:]
    assert all(torch.equal(resumed.params[key], param) for key, param in trail[-1].items())
    fresh = of_codes(coded_model(precision))
    again_state = rebuild(method, fresh, log, Linear().over(lr, STEPS), seed=3)
    for key, residual in whole_state.update.get("residual", {}).items():
        assert residual.abs().max() > 0
        assert torch.equal(again_state.update["residual"][key], residual)


@pytest.mark.parametrize("coded", MOVABLE)
def test_every_forward_sees_integers_in_their_range(coded: str) -> None:
    model = coded_model(precision_of(coded))
    space = of_codes(model)
    seen: list[Tensor] = []
    (name, param), largest = next(iter(space.params.items())), 0
    layer = model.module.get_submodule(name.removesuffix(".codes")).codes
    layer.register_forward_hook(lambda module, args, output: seen.append(module.integers.detach().clone()))
    for _ in run(method_of("quzo", RGE(2, 4.0)), model, space, 300.0):
        seen.append(param.detach().clone())
    for codes in seen:
        assert codes.dtype == torch.int8
        largest = max(largest, int(codes.int().abs().max()))
    assert largest == param.largest
    assert len({tuple(codes.flatten().tolist()) for codes in seen}) > 2 * STEPS


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "coded", "eps", "lr"),
    [("quzo", "int8", 1.0, 30.0), ("qes", "int4", 0.1, 0.3)],
)
def test_training_lowers_the_loss(name: str, coded: str, eps: float, lr: float) -> None:
    model = coded_model(precision_of(coded, **contract.known("precision", coded, {"block": 32})))
    space, f = of_codes(model), objective_of(model)
    before = float(f(1)[0])
    method = method_of(name, RGE(4, eps)).bind(space.params)
    state = method.init(space.params)
    for number in range(1, 51):
        _, state = step(method, model.module, space, f, state, seed=0, step=number, lr=lr)
    assert float(f(1)[0]) < 0.6 * before


@pytest.mark.parametrize(
    ("method", "coded", "lr"), [pytest.param("quzo", "int8", 3e3, marks=pytest.mark.long), ("qes", "int4", 30.0)]
)
def test_a_trial_tests_its_selected_step_and_goes_on_after_a_kill(
    method: str, coded: str, lr: float, tmp_path: Path
) -> None:
    """The test at an earlier step, replayed on codes loaded anew, is that of a trial that ends there."""

    def trial(steps: int) -> Trial:
        train = f"{{steps: {steps}, batch: 4, eval_every: 1, max_length: 64}}"
        (made,) = trials(tmp_path, f"{{method: {method}, precision: {coded}, update: {{lr: {lr}}}, train: {train}}}")
        return made

    outcome, events = outcome_of(trial(4))
    assert outcome.state is TrialState.SUCCEEDED, outcome.error
    assert outcome.selected_step < 4
    short, _ = outcome_of(trial(outcome.selected_step))
    assert short.selected_step == outcome.selected_step
    assert short.metrics["test/loss"] == outcome.metrics["test/loss"]
    killed = [i for i, event in enumerate(events) if isinstance(event, ScoredDev)][1]
    resumed, _ = outcome_of(trial(4), events[: killed + 1])
    assert resumed.selected_step == outcome.selected_step
    assert resumed.metrics["test/loss"] == outcome.metrics["test/loss"]


# The space, and 4-bit integers


@pytest.mark.parametrize("coded", MOVABLE)
def test_installing_changes_no_value_and_uninstalling_stores_what_was_trained(coded: str) -> None:
    model = coded_model(precision_of(coded))
    f = objective_of(model)
    before, stored = f(1), [buffer.clone() for buffer in model.module.buffers()]
    space = of_codes(model)
    assert torch.equal(f(1), before)
    space.uninstall()
    assert torch.equal(f(1), before)
    assert all(torch.equal(a, b) for a, b in zip(model.module.buffers(), stored, strict=True))
    space = of_codes(model)
    for param in space.params.values():
        param.neg_()
    after = f(1)
    assert not torch.equal(after, before)
    space.uninstall()
    assert torch.equal(f(1), after)
    assert not any(isinstance(param, Integers) for param in model.module.parameters())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("coded", MOVABLE)
def test_codes_take_the_bytes_that_the_plan_counts_while_they_are_trained(coded: str, shape: tuple[int, int]) -> None:
    precision = precision_of(coded)
    codes = layer_of(weight_of(shape), precision).codes
    values = codes.train_codes()
    assert values.shape == shape
    assert values.is_contiguous()
    trained = values.numel() + sum(buffer.nbytes for buffer in codes.buffers())
    assert trained == precision.code_bytes(*shape) + precision.unpacked_bytes(*shape)


@pytest.mark.parametrize("coded", MOVABLE)
def test_the_plan_knows_how_many_codes_are_trained_and_what_the_weights_take_then(coded: str) -> None:
    precision, model = precision_of(coded), coded_model(precision_of(coded))
    planned, arch = Codes(), arch_of(tiny_model())
    held = lambda: sum(tensor.nbytes for tensor in (*model.module.buffers(), *model.module.parameters()))
    before = held()
    space = of_codes(model)
    assert sum(param.numel() for param in space.params.values()) == planned.trainable(arch)
    assert held() - before == planned.added_bytes(arch, precision)
    space.uninstall()
    assert held() == before


@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("shape", SHAPES)
def test_four_bit_integers_are_the_nearest_of_their_blocks_grid(shape: tuple[int, int], block: int) -> None:
    weight = weight_of(shape)
    weight.view(-1)[:block] = 0
    codes = layer_of(weight, precision_of("int4", block=block)).codes
    flat = np.pad(weight.numpy().astype(float).flatten(), (0, -weight.numel() % block)).reshape(-1, block)
    steps = abs(flat).max(1, keepdims=True) / 7
    expected = np.round(np.divide(flat, steps, out=np.zeros_like(flat), where=steps > 0))
    found = codes.unpack(codes.values)
    assert found.abs().max() <= 7
    assert np.array_equal(found.numpy().flatten(), expected.flatten()[: weight.numel()])
    torch.testing.assert_close(
        codes.dense().double().flatten(),
        torch.tensor((expected * steps).flatten()[: weight.numel()]),
        rtol=1e-6,
        atol=0,
    )
