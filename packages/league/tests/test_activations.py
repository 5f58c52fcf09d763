"""Directions that read the minibatch: their bases, a whole step against a plain reference, runs and their replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from tests.engine.conftest import TinyModel, tiny_model
from tests.engine.test_updates import batch_of, digest, install, trained
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine import losses, noise
from zo_sweeps.engine.direction import bases_of_inputs, digest_of
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.estimators.rge_one_sided import RGEOneSided
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.replay import Data, replay
from zo_sweeps.engine.schedules.linear import Linear
from zo_sweeps.engine.step import Method, step
from zo_sweeps.engine.train import of_batch
from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.estimator import Estimator
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import FullModel
from zo_sweeps_league.estimators.rge_curved import RGECurved
from zo_sweeps_league.perturbations.agzo import AGZO

pytestmark = pytest.mark.unit
KEY = NoiseKey(4, 1, 0)


class Layers(nn.Module):
    """f = mean cross-entropy of a table, a linear layer, a tanh and another linear layer."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(5)
        self.table, self.first, self.second = nn.Embedding(7, 6), nn.Linear(6, 9), nn.Linear(9, 4, bias=False)
        for param in self.parameters():
            param.data = torch.randn(param.shape, generator=draw)
        self.ids, self.gold = torch.tensor([0, 3, 3, 5, 6]), torch.tensor([1, 0, 3, 2, 2])

    def forward(self, points: int = 1) -> Tensor:
        return F.cross_entropy(self.second(torch.tanh(self.first(self.table(self.ids)))), self.gold).reshape(1)


def plain_f(theta: dict[str, np.ndarray], module: Layers) -> tuple[float, dict[str, np.ndarray]]:
    """f in double precision, and the inputs of its two linear layers."""
    inputs = {"first.weight": theta["table.weight"][module.ids.numpy()]}
    inputs["second.weight"] = np.tanh(inputs["first.weight"] @ theta["first.weight"].T + theta["first.bias"])
    logits = inputs["second.weight"] @ theta["second.weight"].T
    logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return -float(logp[np.arange(5), module.gold.numpy()].mean()), inputs


def test_a_step_is_the_papers_by_a_plain_reference() -> None:
    module, eps, lr, rank = Layers(), 0.1, 0.05, 2
    theta = {name: param.detach().double().numpy().copy() for name, param in module.named_parameters()}
    f0, inputs = plain_f(theta, module)
    draw = lambda place, *shape: noise.gaussian(KEY, place, torch.Size(shape), torch.device("cpu")).double().numpy()
    z = {}
    for name, value in theta.items():
        if (H := inputs.get(name)) is None:
            z[name] = draw(name, *value.shape)
            continue
        A = draw(f"{name}/A", H.shape[1], rank)
        for _ in range(3):
            A = np.linalg.qr(H.T @ H @ A)[0]
        z[name] = draw(f"{name}/U", value.shape[0], rank) @ A.T
    g = (plain_f({name: theta[name] + eps * z[name] for name in theta}, module)[0] - f0) / eps

    space = FullModel(module)
    method = Method(RGEOneSided(1, eps), AGZO(rank), SGD()).bind(space.params)
    found, _ = step(method, module, space, module, method.init(space.params), seed=4, step=1, lr=lr)
    assert found.coefs[:1] == pytest.approx((g,), rel=1e-4)
    assert found.loss == pytest.approx(f0, rel=1e-6)
    for name, param in space.params.items():
        np.testing.assert_allclose(param.detach(), theta[name] - lr * g * z[name], rtol=1e-4, atol=1e-5)


def test_a_basis_holds_all_inputs_or_the_largest_part_of_them() -> None:
    draw = torch.Generator().manual_seed(1)
    U, V = (torch.linalg.qr(torch.randn(n, 3, generator=draw)).Q for n in (20, 12))
    H = U @ torch.diag(torch.tensor([9.0, 3.0, 1.0])) @ V.T
    for rank, kept in ((3, 3), (5, 3), (2, 2), (40, 3)):
        A = AGZO(rank, 8).basis(KEY, "W", H)
        torch.testing.assert_close(A.T @ A, torch.eye(min(rank, 12)), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(H @ A @ A.T @ V[:, :kept], H @ V[:, :kept], rtol=1e-4, atol=1e-4)


def gpt2() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=97, n_positions=64, n_embd=32, n_layer=1, n_head=4, initializer_range=0.2)
        return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("model", ["llama", "llama, tied", "gpt2"])
def test_the_gradient_of_a_matrix_with_a_basis_lies_in_its_directions(model: str) -> None:
    module = gpt2() if model == "gpt2" else tiny_model(tied="tied" in model).module
    params, ids = dict(module.requires_grad_(True).named_parameters()), torch.tensor([[5, 9, 31, 2, 60]])
    directions = AGZO(rank=5, iterations=20)
    with bases_of_inputs(module, params, directions, KEY) as bases:
        module(ids, labels=ids).loss.backward()
    tables = {"model.embed_tokens.weight", "transformer.wte.weight", "transformer.wpe.weight"}
    assert {*bases} == {name for name, param in params.items() if param.dim() == 2} - tables
    for name, (A, transposed) in bases.items():
        G = params[name].grad.T if transposed else params[name].grad
        assert A.shape == (G.shape[1], 5)
        torch.testing.assert_close(G @ A @ A.T, G, rtol=1e-3, atol=1e-4 * float(G.abs().max()), msg=name)
        z = replace(directions, bases=bases).sample(KEY, name, params[name].shape, params[name].device)
        assert z.shape == params[name].shape
        z = z.T if transposed else z
        torch.testing.assert_close(z @ A @ A.T, z, rtol=1e-3, atol=1e-4, msg=name)


# A run is its log and its data


def method_of(estimator: Estimator) -> Method:
    return Method(estimator, AGZO(2), Adam())


def go_on(model: TinyModel, estimator: Estimator, log: Sequence[Sequence[float]] = ()) -> tuple[list[Any], str]:
    space = install("full", model)
    return trained(method_of(estimator), model, space, 1e-3, log), digest(space)


def data_of(model: TinyModel, space: Any, first: int = 0) -> Data:
    f = lambda number: of_batch(model, batch_of(first + number), losses.candidates, space)
    return Data(model.module, space, f)


@pytest.mark.parametrize("estimator", [RGEOneSided(2, 1e-2), RGECurved(1, 1e-2), RGE(2, 1e-2)])
def test_a_run_is_its_log_and_its_minibatches(estimator: Estimator) -> None:
    log, whole = go_on(tiny_model(), estimator)
    assert len(log[0]) == 3
    assert len({line[-1] for line in log}) == 12, "a digest of each step's bases"
    assert go_on(tiny_model(), estimator, log[:5]) == (log[5:], whole)
    model = tiny_model()
    space = install("full", model)
    how = method_of(estimator)
    replay(how, space.params, log, Linear().over(1e-3, 12), seed=3, data=data_of(model, space))
    assert digest(space) == whole
    gaussian = tiny_model()
    assert trained(Method(estimator, Gaussian(), Adam()), gaussian, install("full", gaussian), 1e-3) != log


def test_a_replay_without_the_data_or_with_other_data_is_refused() -> None:
    log, _ = go_on(tiny_model(), RGEOneSided(1, 1e-2))
    how, model = method_of(RGEOneSided(1, 1e-2)), tiny_model()
    space = install("full", model)
    with pytest.raises(ValueError, match="directions of agzo depend on the minibatch at its step"):
        replay(how, space.params, log, Linear().over(1e-3, 12), seed=3)
    with pytest.raises(UserError, match="the bases of step 1 are not those of the run"):
        replay(how, space.params, log, Linear().over(1e-3, 12), seed=3, data=data_of(model, space, first=1))


@pytest.mark.parametrize("estimator", [RGEOneSided(3, 1e-2), RGECurved(2, 1e-2), RGE(2, 1e-2)])
def test_a_step_takes_the_forwards_that_are_counted(estimator: Estimator) -> None:
    """The forward that reads the inputs is f(theta) of an estimator that evaluates it, and one more of any other."""
    module, forwards = Layers(), []
    space = FullModel(module)
    method = method_of(estimator).bind(space.params)

    def f(points: int) -> Tensor:
        forwards.append(points)
        return module()

    step(method, module, space, f, method.init(space.params), seed=4, step=1, lr=0.1)
    own = estimator.evaluations(method.d)
    assert len(forwards) == method.evaluations == own + (not estimator.at_theta)


def test_a_digest_is_of_every_basis_and_its_matrix() -> None:
    module = Layers()
    with bases_of_inputs(module, dict(module.named_parameters()), AGZO(2), KEY) as bases:
        module()
    first, second = bases.values()
    name, other = bases
    kept = digest_of(bases)
    assert kept == digest_of({other: second, name: first}) == float(int(kept))
    changed = second._replace(columns=second.columns * (1 + 1e-6))
    assert kept != digest_of({name: first, other: changed})
    assert kept != digest_of({name: first, "another": second})
