"""The oracles of the published methods: what each becomes at an end of its options, or a plain reference of its own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.engine import contract
from tests.engine.conftest import TinyModel, tiny_model
from tests.engine.oracles import begun, whole
from tests.engine.test_updates import batch_of, digest, install, trained
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import Batch
from zo_sweeps.engine.direction import ghat
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.low_rank import LowRank
from zo_sweeps.engine.perturbations.one_stream import OneStream
from zo_sweeps.engine.replay import replay
from zo_sweeps.engine.schedules.linear import Linear
from zo_sweeps.engine.step import Method, RunState, step
from zo_sweeps.engine.train import Scores, StepDone, train
from zo_sweeps.engine.updates.momentum import Momentum
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.estimator import CURVATURE, SCOUTS, Estimator
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.perturbation import Perturbation, Reads
from zo_sweeps.methods.points import Estimate, Layout, NoiseKey
from zo_sweeps.methods.space import FullModel
from zo_sweeps.methods.update import Update
from zo_sweeps_league.estimators import kerzoo
from zo_sweeps_league.estimators.best_of import BestOf
from zo_sweeps_league.estimators.fzoo import FZOO
from zo_sweeps_league.estimators.kerzoo import KerZOO
from zo_sweeps_league.estimators.rge_curved import RGECurved
from zo_sweeps_league.estimators.rge_guided import RGEGuided
from zo_sweeps_league.estimators.rge_per_row import RGEPerRow
from zo_sweeps_league.estimators.rloo import RLOO
from zo_sweeps_league.perturbations.cone import Cone
from zo_sweeps_league.perturbations.curvature import Curvature
from zo_sweeps_league.perturbations.guided import Guided
from zo_sweeps_league.perturbations.layers import Layers
from zo_sweeps_league.perturbations.loren import LOREN
from zo_sweeps_league.perturbations.projected import Projected
from zo_sweeps_league.perturbations.signs import Signs
from zo_sweeps_league.perturbations.small_weights import SmallWeights
from zo_sweeps_league.perturbations.subspace import Subspace
from zo_sweeps_league.perturbations.tezo import TeZO
from zo_sweeps_league.updates.adamezo import AdaMeZO
from zo_sweeps_league.updates.conservative import Conservative
from zo_sweeps_league.updates.low_rank_momentum import LowRankMomentum
from zo_sweeps_league.updates.meazo import MEAZO
from zo_sweeps_league.updates.mopi import leading
from zo_sweeps_league.updates.muon import Muon, orthogonalized

pytestmark = pytest.mark.unit
CPU = torch.device("cpu")
SHAPES = {"layers.0.W": torch.Size([12, 10]), "layers.1.W": torch.Size([12, 10]), "b": torch.Size([9])}
LAYOUT = Layout(SHAPES, q=2, eps=1e-2)


class Parts(nn.Module):
    """A smooth f of two matrices of one shape and a vector, in double precision inside, times `scale`."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(5)
        self.layers = nn.ModuleList(nn.Module() for _ in range(2))
        for layer in self.layers:
            layer.W = nn.Parameter(torch.randn(12, 10, generator=draw))
        self.b = nn.Parameter(torch.randn(9, generator=draw))
        self.slopes, self.scale = torch.randn(249, generator=draw, dtype=torch.double), scale

    def forward(self) -> Tensor:
        theta = torch.cat([*(layer.W.flatten() for layer in self.layers), self.b]).double()
        return self.scale * (torch.tanh(self.slopes * theta).sum() + 0.1 * theta.square().sum()).reshape(1)


def run(
    estimator: Estimator, noise: Perturbation, update: Update, steps: int = 6, lr: float = 1e-2, scale: float = 1.0
) -> tuple[dict[str, Tensor], list[tuple[float, ...]]]:
    """theta after some steps, and the log."""
    module = Parts(scale)
    space, log = FullModel(module), []
    method = Method(estimator, noise, update).bind(space.params)
    state = method.init(space.params)
    for number in range(1, steps + 1):
        found, state = step(method, module, space, lambda P: module(), state, seed=4, step=number, lr=lr)
        log.append(found.coefs)
    return {name: param.detach().clone() for name, param in space.params.items()}, log


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: float = 0.0) -> None:
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=tolerance, atol=tolerance)


def draw(noise: Perturbation, key: NoiseKey, name: str = "layers.0.W") -> Tensor:
    return noise.sample(key, name, SHAPES[name], CPU)


# At an end of its options, a method is MeZO


@pytest.mark.parametrize(
    ("noise", "estimator"),
    [
        (Layers(dropped=0), RGE(2, 1e-2)),
        (SmallWeights(sparsity=0), RGE(2, 1e-2)),
        (SmallWeights(sparsity=0, threshold="current"), RGE(2, 1e-2)),
        (Cone(angle=math.pi / 2), RGE(2, 1e-2)),
        (Curvature(alpha=0), RGECurved(2, 1e-2)),
    ],
    ids=["LeZO", "Sparse-MeZO", "Sparse-MeZO current", "ConMeZO", "HiZOO"],
)
def test_without_its_own_rule_a_method_is_mezo(noise: Perturbation, estimator: Estimator) -> None:
    expected, _ = run(RGE(2, 1e-2), Gaussian(), SGD())
    assert_same(run(estimator, noise, SGD())[0], expected, 1e-6)


# A run is its log, for directions that read the log or the weights: through `train`, killed and resumed


STATEFUL = [
    name
    for name in contract.REAL_PERTURBATIONS
    if contract.kind("perturbation", name).reads in (Reads.LOG, Reads.WEIGHTS)
]


@pytest.mark.parametrize(
    ("name", "update", "space"),
    [
        *((name, "sgd", "full") for name in STATEFUL),
        # With an update's state beside the direction's, and factors for parameters: one of them is enough by default.
        *(
            pytest.param(name, "adam", "lora_fa", marks=() if name == "guided" else pytest.mark.long)
            for name in STATEFUL
        ),
    ],
)
def test_a_run_is_its_log_where_directions_read_more_than_their_address(name: str, update: str, space: str) -> None:
    noise = contract.member("perturbation", name)
    if noise.no_zeros and contract.kind("space", space).has_zeros:
        noise = replace(noise, threshold="current")  # the other one is refused there
    estimator = {CURVATURE: RGECurved(2, 1e-2), SCOUTS: RGEGuided(2, 1e-2)}.get(noise.needs, RGE(2, 1e-2))
    how = Method(estimator, noise, contract.member("update", update))
    model = tiny_model()
    whole = install(space, model)
    log = trained(how, model, whole, 1e-3)
    plain = install(space, tiny_model())
    replay(how, plain.params, log, Linear().over(1e-3, 12), seed=3)
    assert digest(plain) == digest(whole)
    model = tiny_model()
    resumed = install(space, model)
    assert trained(how, model, resumed, 1e-3, log[:5]) == log[5:]
    assert digest(resumed) == digest(whole)
    gaussian = tiny_model()
    assert trained(Method(estimator, Gaussian(), how.update), gaussian, install(space, gaussian), 1e-3) != log


# Estimators


def test_kerzoos_mean_over_the_distance_has_no_cubic_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    f = lambda t: 1.5 * t + 0.7 * t**2 - 2 * t**3
    eps, nodes, weights = 0.3, *np.polynomial.legendre.leggauss(6)
    found = []
    for node in nodes:
        monkeypatch.setattr(kerzoo, "_distance", lambda key, r=node: float(r))
        points = KerZOO(1, eps).points(0, 1)
        found.append(KerZOO(1, eps).combine(points, [f(point.scale) for point in points]).coefs[0])
    assert float(np.dot(weights, found)) / 2 == pytest.approx(1.5, rel=1e-12)
    plain = RGE(1, eps)
    assert plain.combine(plain.points(0, 1), [f(eps), f(-eps)]).coefs[0] == pytest.approx(1.5 - 2 * eps**2)


def test_kerzoos_distances_are_uniform() -> None:
    r = np.array([kerzoo._distance(NoiseKey(0, number, 0)) for number in range(1, 4001)])
    assert (np.abs(r) <= 1).all()
    assert abs(r.mean()) < 5 / math.sqrt(3 * 4000)
    assert (r**2).mean() == pytest.approx(1 / 3, abs=5 * math.sqrt(4 / 45 / 4000))


def test_kerzoos_kernel_costs_25_quarters_of_rges_second_moment() -> None:
    nodes, weights = np.polynomial.legendre.leggauss(6)
    rK = np.array([r * kerzoo._kernel(r) for r in nodes])
    assert float(weights @ rK) / 2 == pytest.approx(1)
    assert float(weights @ rK**2) / 2 == pytest.approx(25 / 4)
    drawn = [kerzoo._distance(NoiseKey(0, number, 0)) for number in range(1, 4001)]
    squares = np.array([(r * kerzoo._kernel(r)) ** 2 for r in drawn])
    assert squares.mean() == pytest.approx(25 / 4, abs=5 * squares.std() / math.sqrt(4000))


def test_fzoo_does_not_see_the_scale_of_the_loss_and_needs_two_queries() -> None:
    one, other = (run(FZOO(3, 1e-2), Gaussian(), SGD(), scale=scale) for scale in (1.0, 1000.0))
    assert_same(one[0], other[0], 1e-5)
    with pytest.raises(UserError, match=r"estimator\.q of fzoo must be at least 2, not 1"):
        FZOO(q=1)
    points = FZOO(3).points(0, 1)
    assert FZOO(3).combine(points, [1.0] * 4).coefs == (0.0, 0.0, 0.0)


def test_rloo_compares_each_loss_with_the_mean_of_the_others() -> None:
    found = RLOO(3, 0.5).combine(RLOO(3, 0.5).points(0, 1), [1.0, 4.0, 2.5])
    assert found.coefs == pytest.approx([(1 - 3.25) / 0.5, (4 - 1.75) / 0.5, (2.5 - 2.5) / 0.5])
    assert found.loss == pytest.approx(2.5)


def test_the_best_of_some_points_is_where_the_step_ends() -> None:
    module, keys = Parts(), [NoiseKey(4, 1, query) for query in range(5)]
    start = {name: param.detach().clone() for name, param in module.named_parameters()}

    def at(chosen: Sequence[NoiseKey]) -> dict[str, Tensor]:
        z = lambda name: sum((draw(Gaussian(), key, name) for key in chosen), torch.zeros(SHAPES[name])) / len(chosen)
        return {name: start[name] + 1e-2 * z(name) for name in start}

    values = [float(torch.func.functional_call(module, at([key]), ())) for key in keys]
    in_order = sorted(keys, key=lambda key: values[key.query])
    for keep in (1, 2):
        assert_same(run(BestOf(5, 1e-2, keep), Gaussian(), SGD(), 1, 1.0)[0], at(in_order[:keep]), 1e-6)
    with pytest.raises(UserError, match=r"estimator\.keep of best_of must be at most q = 2, not 3"):
        BestOf(q=2, keep=3)


# Directions


def test_lezo_keeps_a_quarter_of_the_layers_other_ones_each_time() -> None:
    layout = Layout(
        {f"model.layers.{i}.{part}": torch.Size([3]) for i in range(8) for part in "ab"} | {"head": torch.Size([2])}, 1
    )
    noise, seen = Layers().bind(layout), []
    for number in range(1, 401):
        key = NoiseKey(0, number, 0)
        moved = {name for name, shape in layout.shapes.items() if noise.sample(key, name, shape, CPU).any()}
        kept = {name.split(".")[2] for name in moved - {"head"}}
        assert moved == {"head", *(f"model.layers.{i}.{part}" for i in kept for part in "ab")}
        assert len(kept) == 2
        seen += kept
    for layer in range(8):
        assert seen.count(str(layer)) / 400 == pytest.approx(0.25, abs=5 * math.sqrt(0.25 * 0.75 / 400))


@pytest.mark.parametrize("threshold", ["initial", "current"])
def test_sparse_mezo_moves_the_small_weights_as_they_are_now(threshold: Any) -> None:
    module, noise, seen = Parts(), SmallWeights(0.75, threshold), []
    space = FullModel(module)
    method = Method(RGE(1, 1e-3), noise, SGD()).bind(space.params)
    state, W = method.init(space.params), module.layers[0].W
    limit = W.detach().abs().flatten().sort().values[29]  # the 30 smallest of 120
    for number in range(1, 8):
        before = W.detach().clone()
        now = before.abs().flatten().sort().values[29] if threshold == "current" else limit
        _, state = step(method, module, space, lambda P: module(), state, seed=1, step=number, lr=0.03)
        moved = W.detach() != before
        assert torch.equal(moved, before.abs() <= now)
        seen.append(moved)
    assert not torch.equal(seen[0], seen[-1]), "the mask is of today's weights"
    with torch.no_grad():
        W.zero_()
    refused = pytest.raises(UserError, match=r"^layers\.0\.W begins at 0, .*; use perturbation\.threshold=current$")
    with refused if threshold == "initial" else contextlib.nullcontext():
        method.init(space.params)


def test_sparse_mezo_decays_weights_after_it_has_moved_those_that_were_small_at_the_points() -> None:
    """With lr * decay = 0.2, |w| between h and 1.25 h fall below h by the decay alone: no estimate moves them."""
    module, decay = Parts(), 2.0
    space, W = FullModel(module), module.layers[0].W
    before = W.detach().clone()
    method = Method(RGE(1, 1e-3), SmallWeights(0.75), SGD(weight_decay=decay)).bind(space.params)
    step(method, module, space, lambda P: module(), method.init(space.params), seed=1, step=1, lr=0.1)
    large = before.abs() > before.abs().flatten().sort().values[29]
    torch.testing.assert_close(W.detach()[large], before[large] * (1 - 0.1 * decay))
    assert not torch.isclose(W.detach()[~large], before[~large] * (1 - 0.1 * decay)).any()


def test_subzero_lies_between_orthonormal_bases_that_last_for_the_window() -> None:
    noise = Subspace(3, 4).bind(LAYOUT)
    squares = []
    for number in range(1, 9):
        U, V = noise.factors(NoiseKey(0, number, 0), "layers.0.W", SHAPES["layers.0.W"], CPU)
        torch.testing.assert_close(V.T @ V, torch.eye(3), atol=1e-5, rtol=0)
        assert torch.linalg.matrix_rank(U @ V.T) == 3
        bases = torch.cat(
            [*(noise.factors(NoiseKey(0, n, 0), "layers.0.W", SHAPES["layers.0.W"], CPU)[0] for n in (1, 2, 3, 4))], 1
        )
        assert torch.linalg.matrix_rank(torch.cat([bases, U], 1)) == (3 if number <= 4 else 6)
    for number in range(1, 801):
        squares.append(float(draw(Subspace(3, 1).bind(LAYOUT), NoiseKey(number, 1, 0)).square().sum()))
    assert np.mean(squares) == pytest.approx(120, abs=5 * np.std(squares) / math.sqrt(800))


def test_tezo_stays_within_its_directions_for_the_whole_run() -> None:
    moved = run(RGE(2, 1e-2), TeZO(2), SGD(), steps=9)[0]["layers.0.W"] - Parts().layers[0].W.detach()
    assert torch.linalg.matrix_rank(moved, rtol=1e-4) == 2
    moved = run(RGE(2, 1e-2), Gaussian(), SGD(), steps=9)[0]["layers.0.W"] - Parts().layers[0].W.detach()
    assert torch.linalg.matrix_rank(moved, rtol=1e-4) == 10


def test_conmezo_is_its_formula_with_one_norm_over_all_parameters() -> None:
    noise = Cone(angle=1.1, beta=0.9, warmup=20).bind(LAYOUT)
    params = dict(Parts().named_parameters())
    state, m = noise.init(params), np.zeros(249)
    flat = lambda of, key: np.concatenate([draw(of, key, name).double().flatten().numpy() for name in params])
    for number in range(1, 6):
        now, key = noise.at(params, state, number), NoiseKey(0, number, 0)
        g = flat(Gaussian(), key)
        z = g if number == 1 else math.sqrt(249) * math.cos(1.1) * m / np.linalg.norm(m) + math.sin(1.1) * g
        np.testing.assert_allclose(flat(now, key), z, rtol=2e-4, atol=2e-5)
        t = number
        x = min(1, (t - 2) / 18)
        beta = 0.1 if t <= 2 else 0.9 - 0.8 / (1 + 8 * x**1.8) ** 3
        m = beta * m + (1 - beta) * 0.7 * z
        state = now.observe(params, Estimate(((key, 0.7),), (0.7,), 0.0), state)
    assert [Cone(beta=0.99).decay(t) for t in (1, 2)] == [0.99, 0.99]
    assert [Cone(beta=0.99, warmup=100).decay(t) for t in (10, 100, 500)] == [0.1, 0.99, 0.99]


def test_hizoos_curvature_has_the_mean_of_its_identity() -> None:
    """On a diagonal quadratic E[c H_i g_i^2 / 2] = h_i + H_i / 2 sum_j h_j / H_j: the trace swamps h_i."""
    h, H = torch.tensor([1.0, 2.0, 4.0, 0.5]).double(), torch.tensor([1.0, 0.5, 2.0, 1.0]).double()
    g = torch.stack([Gaussian().sample(NoiseKey(0, t, 0), "w", torch.Size([4]), CPU) for t in range(1, 20001)]).double()
    c = ((g / H.sqrt()).square() * h).sum(1)
    seen = c.unsqueeze(1) * H * g.square() / 2
    error = 5 * seen.std(0) / math.sqrt(len(g))
    assert ((seen.mean(0) - (h + H / 2 * (h / H).sum())).abs() < error).all()


def test_hizoo_smooths_the_second_derivatives_of_its_queries() -> None:
    noise, params = Curvature(0.1).bind(LAYOUT), dict(Parts().named_parameters())
    keys, state = [NoiseKey(0, 1, query) for query in (0, 1)], Curvature().init(params)
    estimate = Estimate(((keys[0], 0.5), (keys[1], 0.2)), (1.0, 0.4, 3.0, -2.0), 0.0)
    now = noise.at(params, state, 1)
    H = now.observe(params, estimate, state)["H"]["b"]
    g = [draw(Gaussian(), key, "b") for key in keys]
    expected = 0.9 + 0.1 * (3.0 * g[0].square() / 2 + 2.0 * g[1].square() / 2) / 2
    torch.testing.assert_close(H, expected)
    later = noise.at(params, state, 2)
    torch.testing.assert_close(draw(later, keys[0], "b"), g[0] / expected.sqrt())


def test_lorens_rows_have_its_covariance_and_a_follows_the_score_function() -> None:
    noise, shape, damping = LOREN(0.1, 0.5), torch.Size([40, 3]), 0.1
    a = torch.tensor([0.3, -0.2, 0.5])
    params = {"W": nn.Parameter(torch.zeros(shape))}
    now = noise.bind(Layout({"W": shape}, q=2, eps=1e-2)).at(params, {"a": {"W": a}}, 1)
    rows = torch.cat([now.sample(NoiseKey(0, t, 0), "W", shape, CPU) for t in range(1, 401)]).double()
    S = torch.linalg.inv(damping * torch.eye(3) + torch.outer(a, a)).double()
    error = 5 * (rows.unsqueeze(2) * rows.unsqueeze(1)).std(0) / math.sqrt(len(rows))
    assert ((rows.T @ rows / len(rows) - S).abs() < error).all()

    keys, coefs = [NoiseKey(0, 1, query) for query in (0, 1)], (6.0, -6.0)
    estimate = Estimate(tuple((key, g / 2) for key, g in zip(keys, coefs, strict=True)), coefs, 0.0)
    variable, expected = a.double().requires_grad_(True), torch.zeros(3).double()
    for key, g in zip(keys, coefs, strict=True):
        Z, precision = (
            now.sample(key, "W", shape, CPU).double(),
            damping * torch.eye(3).double() + torch.outer(variable, variable),
        )
        logp = 20 * torch.logdet(precision) - 0.5 * (Z @ precision * Z).sum()
        expected += 1e-2 * g / 2 * torch.autograd.grad(logp, variable)[0]
    found = now.observe(params, estimate, {"a": {"W": a}})["a"]["W"]
    torch.testing.assert_close(found.double(), a.double() - 0.5 * expected, rtol=1e-4, atol=1e-4)


def test_loren_as_released_shrinks_one_direction_of_a_whole_parameter_which_stays() -> None:
    shape, damping, eps, coefs = torch.Size([4, 3]), 0.1, 1e-2, (6e6, -6e6)
    params = {"W": nn.Parameter(torch.zeros(shape)), "b": nn.Parameter(torch.zeros(5))}
    bound = LOREN(damping, 0.5, released=True).bind(Layout({name: p.shape for name, p in params.items()}, q=2, eps=eps))
    state = bound.init(params)
    now = bound.at(params, state, 1)
    keys = [NoiseKey(0, 1, query) for query in (0, 1)]
    estimate = Estimate(tuple((key, g / 2) for key, g in zip(keys, coefs, strict=True)), coefs, 0.0)
    found = now.observe(params, estimate, state)["a"]
    for name, rows in (("W", 4), ("b", 1)):
        a = state["a"][name].double().requires_grad_(True)
        A = a.repeat(rows)
        values, vectors = torch.linalg.eigh(torch.eye(len(A)) + torch.outer(A, A) / damping)
        expected = torch.zeros(len(a)).double()
        for key, g in zip(keys, coefs, strict=True):
            Z = now.sample(key, name, params[name].shape, CPU).double().flatten()
            z = Gaussian().sample(key, name, params[name].shape, CPU)
            signs = torch.ones(len(A)).double()
            signs[-1] = -1  # of the root along A, whose law is that of the positive one
            torch.testing.assert_close(
                Z, vectors @ (signs * values**-0.5 * (vectors.T @ z.flatten().double())), rtol=1e-4, atol=1e-5
            )
            precision = torch.eye(len(A)) + torch.outer(A, A) / damping
            logp = (torch.logdet(precision) - Z @ precision @ Z) / 2
            (gradient,) = torch.autograd.grad(logp, a, retain_graph=True)
            expected += eps * g / 2 * damping**0.5 * eps**2 * gradient
        torch.testing.assert_close(found[name].double(), (a - 0.5 * expected).detach(), rtol=1e-4, atol=1e-4)


def test_momentum_per_query_moves_matrices_after_each_query_and_vectors_once() -> None:
    params, mu, lr = dict(Parts().named_parameters()), 0.6, 0.1
    theta = {name: param.detach().clone() for name, param in params.items()}
    m, update = {name: torch.zeros_like(one) for name, one in theta.items()}, Momentum(momentum=mu, per_query=True)
    state = update.init(params)
    for number in (1, 2):
        terms = tuple((NoiseKey(0, number, query), 0.5 - query) for query in range(3))
        state = update.apply(params, Estimate(terms, (), 0.0), Gaussian(), state, lr)
        for key, weight in terms:
            for name, one in theta.items():
                g = weight * Gaussian().sample(key, name, one.shape, CPU)
                m[name] = mu * m[name] + g
                one -= lr * (m[name] if one.dim() == 2 else g)
    assert_same({name: param.detach() for name, param in params.items()}, theta, 1e-5)


def test_one_stream_gives_all_parameters_the_same_numbers_from_the_start() -> None:
    key, noise = NoiseKey(0, 1, 0), OneStream()
    assert torch.equal(draw(noise, key), draw(noise, key, "layers.1.W"))
    assert torch.equal(draw(noise, key).flatten()[:9], draw(noise, key, "b"))
    assert not torch.equal(draw(noise, key), draw(noise, NoiseKey(0, 2, 0)))


@pytest.mark.parametrize(
    ("noise", "queries", "slips"),
    [
        (LowRank(2, 3, "released", slip=True), 1, ["layers.0.W", "b"]),
        (LowRank(2, 3, "released"), 1, []),
        (Projected(4, 3, "zo_muon"), 4, ["layers.0.W"]),
        (Projected(4, 3, "zo_mopi"), 4, ["layers.0.W", "b"]),
        (Projected(4, 3), 4, []),
    ],
)
def test_a_slip_moves_along_other_directions_where_a_basis_is_drawn_and_nowhere_else(
    noise: Perturbation, queries: int, slips: list[str]
) -> None:
    bound = noise.bind(Layout(SHAPES, queries))
    generator = torch.Generator().manual_seed(2)
    for number in range(1, 8):
        weights = torch.randn(queries, generator=generator).tolist()
        weights[0] = 3.0  # so that query 0 counts
        estimate = Estimate(tuple((NoiseKey(0, number, i), w) for i, w in enumerate(weights)), tuple(weights), 0.0)
        for name in ("layers.0.W", "b"):
            evaluated, moved = (
                ghat(estimate, one, name, torch.empty(SHAPES[name])).flatten() for one in (bound, bound.stepped())
            )
            cosine = float(torch.nn.functional.cosine_similarity(evaluated, moved, dim=0))
            assert cosine < 0.9 if name in slips and number % 3 == 1 else cosine == pytest.approx(1, abs=1e-5), number


def test_mezo_gv_steps_along_the_difference_of_the_best_direction_and_a_new_one() -> None:
    """On a linear f the slope along z is the difference of the scouts' slopes, and the lower scout is kept."""
    noise, params = Guided().bind(Layout(SHAPES, q=1)), dict(Parts().named_parameters())
    estimator, state, held = RGEGuided(1, 0.5), Guided().init(params), None
    slope = torch.linspace(-1, 2, 249).double()
    for number in range(1, 9):
        now = noise.at(params, state, number)
        points = estimator.points(4, number)
        assert [point.scale for point in points] == pytest.approx([0.5, -0.5, *[0.5 / math.sqrt(2)] * 2])
        z = {key: whole(now, key, Layout(SHAPES, 1)).double() for key in {point.key for point in points}}
        estimate = estimator.combine(points, [p.scale * float(slope @ z[p.key]) for p in points])
        v, best, new = (float(slope @ z[NoiseKey(4, number, query)]) for query in (0, 1, 2))
        assert estimate.coefs == pytest.approx((v, best - new), rel=1e-6)
        assert v == pytest.approx((best - new) / math.sqrt(2), rel=1e-4)
        assert held in (None, pytest.approx(best, rel=1e-6))
        held = min(best, new)
        state = now.observe(params, estimate, state)


def test_mezo_gvs_slip_moves_all_parameters_by_the_numbers_of_the_first() -> None:
    key, noise, right = NoiseKey(0, 1, 0), Guided(slip=True).bind(LAYOUT), Guided().bind(LAYOUT)
    assert torch.equal(draw(noise, key), draw(noise, key, "layers.1.W"))
    assert torch.equal(draw(noise, key), draw(right, key))
    assert torch.equal(draw(noise, key).flatten()[:9], draw(noise, key, "b"))
    assert not torch.equal(draw(right, key), draw(right, key, "layers.1.W"))
    assert torch.equal(draw(noise, NoiseKey(0, 1, 2)), draw(right, NoiseKey(0, 1, 2))), "scouts are as evaluated"


def test_a_lost_scout_leaves_the_best_direction_and_the_estimate_as_they_are() -> None:
    estimator = RGEGuided(2, 0.5)
    points = estimator.points(0, 1)
    losses = [1.0, 0.5, 0.2, 0.3, 2.0, 1.0, 0.7, 0.1]
    whole = estimator.combine(points, losses)
    assert whole.coefs == pytest.approx((0.5, 1.0, -0.2 * math.sqrt(2), 1.2 * math.sqrt(2)))
    left = estimator.combine([*points[:2], *points[3:]], [*losses[:2], *losses[3:]])
    assert left.coefs[:2] == whole.coefs[:2]
    assert math.isnan(left.coefs[2])
    assert left.terms == whole.terms


# Updates


def test_meazo_does_not_see_the_scale_of_the_loss() -> None:
    one, other = (run(RGE(2, 1e-2), Gaussian(), MEAZO(), scale=scale)[0] for scale in (1.0, 1000.0))
    assert_same(one, other, 1e-5)


@pytest.mark.parametrize("q", [1, 2, 3])
@pytest.mark.parametrize("update", [MEAZO(), Conservative()], ids=["MEAZO", "Conservative"])
def test_an_update_takes_no_second_derivative_for_a_coefficient(update: Update, q: int) -> None:
    """Without its own rule, HiZOO's directions are MeZO's, and so is the run."""
    expected, log = run(RGE(q, 1e-2), Gaussian(), update)
    found, longer = run(RGECurved(q, 1e-2), Curvature(alpha=0), update)
    assert_same(found, expected, 1e-6)
    assert [line[:q] for line in longer] == [pytest.approx(line, rel=1e-5) for line in log]


@pytest.mark.parametrize("decision", [1, 0, -1])
@pytest.mark.parametrize(
    ("estimator", "own", "further"),
    [
        (RGECurved(2, 0.5), (1.6, -0.3), (2.0, 3.0)),
        (RGEGuided(2, 0.5), (-1.6, 0.3), (0.9, -0.4)),
        (RGECurved(3, 0.5), (1.6, math.nan, -0.3), (2.0, math.nan, 3.0)),
    ],
    ids=["curvatures", "scouts", "a lost query"],
)
def test_the_decision_of_conservative_is_on_the_coefficients_of_the_directions_alone(
    estimator: Estimator, own: tuple[float, ...], further: tuple[float, ...], decision: int
) -> None:
    estimate = estimator.from_log(0, 1, (*own, *further))
    found = {1: [0.0, 1.0, 2.0], 0: [2.0, 1.0, 2.0], -1: [2.0, 1.0, 0.0]}[decision]
    chosen = Conservative().choose(estimate, 0.1, lambda scales: found)
    assert chosen.coefs == pytest.approx((*(decision * g for g in own), *further), nan_ok=True)
    assert chosen.terms == tuple((key, decision * weight) for key, weight in estimate.terms)


@pytest.mark.parametrize(
    "name", [name for name in contract.REAL_PERTURBATIONS if contract.kind("perturbation", name).factored]
)
def test_a_perturbation_keeps_a_factor_exactly_if_momentum_can_be_carried_into_the_next(name: str) -> None:
    """V' of the next window has V'^T V' of about n I, of N(0, 1) entries; and V lasts for two steps."""
    shape, noise = torch.Size([6, 4000]), contract.member("perturbation", name, rank=3)
    noise = noise.bind(Layout({"W": shape}, 1))
    first, second = (noise.factors(NoiseKey(0, step, 0), "W", shape, CPU)[1] for step in (1, 2))
    normal = torch.allclose(first.T @ first / 4000, torch.eye(3), atol=5 * math.sqrt(2 / 4000))
    assert noise.keeps_factor == (normal and torch.equal(first, second))


def test_adamezo_over_one_estimate_is_a_step_of_signs() -> None:
    found = AdaMeZO(horizon=1).last_move([-3.0], 1e-3)
    assert found == pytest.approx(1e-3 * 100 / (1 + 1e-5 / 3))


def test_muons_step_is_about_the_sign_of_the_singular_values() -> None:
    G = torch.randn(40, 24, generator=torch.Generator().manual_seed(1))
    U, _, Vh = torch.linalg.svd(G, full_matrices=False)
    found = orthogonalized(G, 5)
    assert (torch.linalg.svdvals(found) - 1).abs().max() < 0.35
    assert float((found * (U @ Vh)).sum() / found.norm() / math.sqrt(24)) > 0.97
    torch.testing.assert_close(orthogonalized(G.T.contiguous(), 5), found.T, rtol=1e-3, atol=1e-3)
    assert_same({"0": orthogonalized(torch.zeros(4, 3), 5)}, {"0": torch.zeros(4, 3)})


def test_of_a_projected_estimate_muon_is_the_projection_of_the_inner_one() -> None:
    generator = torch.Generator().manual_seed(1)
    P, G = torch.linalg.qr(torch.randn(30, 6, generator=generator)).Q, torch.randn(6, 20, generator=generator)
    torch.testing.assert_close(orthogonalized(P @ G, 5), P @ orthogonalized(G, 5), rtol=1e-3, atol=1e-4)
    params = {"W": nn.Parameter(torch.zeros(30, 20))}

    class Known(Gaussian):
        sample = lambda self, *args: P @ G

        def combine(self, *args: Any, **kwargs: Any) -> Tensor:
            return P @ G

    Muon().apply(params, Estimate(((NoiseKey(0, 1, 0), 1.0),), (1.0,), 0.0), Known(), {}, 0.5)
    torch.testing.assert_close(params["W"].detach(), -0.5 * orthogonalized(P @ G, 5), rtol=1e-4, atol=1e-5)


def test_mopi_keeps_the_leading_directions_and_all_of_them_are_the_sign() -> None:
    generator = torch.Generator().manual_seed(3)
    U, V = (torch.linalg.qr(torch.randn(n, 8, generator=generator)).Q for n in (30, 20))
    M = U @ torch.diag(torch.tensor([9.0, 8, 7, 6, 0.3, 0.2, 0.1, 0.05])) @ V.T
    start = torch.randn(20, 4, generator=generator)
    torch.testing.assert_close(leading(M, start, 200), U[:, :4] @ V[:, :4].T, rtol=1e-3, atol=1e-3)
    every = torch.randn(20, 8, generator=generator)
    torch.testing.assert_close(leading(M, every, 400), U @ V.T, rtol=1e-2, atol=1e-2)


def test_mopi_has_no_directions_beyond_the_rank_of_an_estimate() -> None:
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        M = torch.randn(64, 16, generator=generator) @ torch.randn(16, 64, generator=generator)
        found = leading(M, torch.randn(64, 32, generator=generator), 1)
        assert float(found.square().sum()) == pytest.approx(16, abs=1e-2)
        rows = torch.linalg.qr(M.T[:, :16]).Q
        torch.testing.assert_close(found @ rows @ rows.T, found, rtol=0, atol=1e-4)


def test_lozos_momentum_is_kept_in_the_basis_and_carried_into_the_next() -> None:
    noise, lr, mu = LowRank(2, 2, "released"), 0.1, 0.6
    params = {"W": nn.Parameter(torch.zeros(12, 10)), "b": nn.Parameter(torch.zeros(9))}
    update, W, N, last = LowRankMomentum(momentum=mu), torch.zeros(12, 10), torch.zeros(12, 2), None
    state = update.init(params)
    for number in range(1, 6):
        key, g = NoiseKey(0, number, 0), 0.5 + number
        state = update.apply(params, Estimate(((key, g),), (g,), 0.0), noise, state, lr)
        U, V = noise.factors(key, "W", W.shape, CPU)
        if last is not None and not torch.equal(last, V):
            N = N @ last.T @ V / 10
        N, last = mu * N + (1 - mu) * g * U, V
        W = W - lr * N @ V.T
    torch.testing.assert_close(params["W"].detach(), W, rtol=1e-4, atol=1e-4)
    assert_same(
        run(RGE(1, 1e-2), LowRank(2, 3), LowRankMomentum(momentum=0))[0],
        run(RGE(1, 1e-2), LowRank(2, 3), SGD())[0],
        1e-5,
    )


def test_every_perturbation_that_has_a_state_says_so() -> None:
    for name in contract.REAL_PERTURBATIONS:
        noise = contract.member("perturbation", name)
        params = dict(Parts().named_parameters())
        state = noise.bind(LAYOUT).init(params)
        copies = sum(isinstance(value, dict) and {*value} == {*params} for value in state.values())
        assert copies == noise.state_copies, name
        assert bool(state) <= (noise.reads is not Reads.NOISE), name
    assert begun(Gaussian(), LAYOUT) == Gaussian()


# Rows of one's own


def test_two_directions_of_grzo_share_magnitudes_and_are_uncorrelated() -> None:
    one, other = (
        torch.stack([draw(Signs(), NoiseKey(0, t, i)).flatten() for t in range(1, 1501)]).double() for i in (0, 1)
    )
    assert torch.equal(one.abs(), other.abs())
    error = 5 * (one[:, :40].unsqueeze(2) * other[:, :40].unsqueeze(1)).std(0) / math.sqrt(1500)
    assert ((one[:, :40].T @ other[:, :40] / 1500).abs() < error).all()


def test_of_rows_of_its_own_a_direction_sees_those_alone() -> None:
    module, seen = Parts(), []
    method = Method(RGEPerRow(3, 1e-2), Signs(), SGD()).bind(dict(module.named_parameters()))

    def of(query: int) -> Callable[[int], Tensor]:
        def f(P: int) -> Tensor:
            seen.append(query)
            return (query + 1.0) * module()

        return f

    space = FullModel(module)
    found, _ = step(method, module, space, [of(i) for i in range(3)], RunState(), seed=0, step=5, lr=0.0)
    assert seen == [0, 0, 1, 1, 2, 2]
    points = method.estimator.points(0, 5)
    plain = evaluate(lambda P: module(), module, space, method.perturbation, points, Mode.SEQUENTIAL)
    assert found.coefs == method.estimator.combine(points, [(i // 2 + 1) * f for i, f in enumerate(plain)]).coefs
    assert [*method.estimator.minibatches(5)] == [13, 14, 15]
    assert [*RGE(3).minibatches(5)] == [5]


@pytest.mark.parametrize("space", ["full", "lora_fa"])
def test_a_run_with_rows_of_their_own_is_its_log_and_takes_the_data_in_the_same_order(space: str) -> None:
    how, seen = Method(RGEPerRow(3, 1e-2), Signs(), SGD()), []

    def batches(number: int) -> Batch:
        seen.append(number)
        return batch_of(number)

    def go_on(model: TinyModel, installed: Any, log: Sequence[Sequence[float]] = ()) -> list[StepDone]:
        events = train(
            how, model, installed, batches, losses.candidates, Linear().over(1e-4, 4), lambda: Scores(0.0, 0.0, {}),
            seed=3, steps=4, eval_every=4, log=log,
        )  # fmt: skip
        return [event for event in events if isinstance(event, StepDone)]

    model = tiny_model()
    whole = install(space, model)
    done = go_on(model, whole)
    log = [event.coefs for event in done]
    assert seen == [*range(1, 13)]
    assert done[1].tokens == sum(batch_of(number).input_ids.numel() for number in (4, 5, 6)) * 2
    plain = install(space, tiny_model())
    replay(how, plain.params, log, Linear().over(1e-4, 4), seed=3)
    assert digest(plain) == digest(whole)
    model = tiny_model()
    resumed = install(space, model)
    assert [event.coefs for event in go_on(model, resumed, log[:2])] == log[2:]
    assert digest(resumed) == digest(whole)
