"""A full space's points, made in parts: the bits of whole weights, and theta and the model as they were."""

from __future__ import annotations

import pytest
import torch

from tests.engine.conftest import TinyModel, make_examples, tiny_model
from zo_sweeps.engine import losses, out_of_place
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.direction import combine
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.layers.full import FullModel
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.rademacher import Rademacher
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import NoiseKey

pytestmark = pytest.mark.unit


def points_losses(model: TinyModel, noise) -> list[float]:
    batch = collate(make_examples(3), pad_id=0)
    objective = lambda P: losses.candidates(losses.token_logprobs(model, batch, P), batch)
    return evaluate(objective, model.module, FullModel(model.module), noise, RGE(2, 1e-2).points(0, 1), Mode.SEQUENTIAL)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chunk", [1, 100, 1 << 20])
def test_losses_do_not_depend_on_how_many_rows_are_made_at_a_time(
    chunk: int, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Whole(Gaussian):
        combine = None  # only whole directions

    expected = points_losses(tiny_model(tied=tied), Whole())
    monkeypatch.setitem(out_of_place.CHUNK, "cpu", chunk)
    assert points_losses(tiny_model(tied=tied), Gaussian()) == pytest.approx(expected, rel=1e-6)


def test_the_model_is_left_as_it_was(model: TinyModel) -> None:
    before = {name: param.clone() for name, param in model.module.named_parameters()}
    points_losses(model, Gaussian())
    assert all(torch.equal(param, before[name]) for name, param in model.module.named_parameters())
    assert not any("forward" in vars(layer) or layer._forward_hooks for layer in model.module.modules())


@pytest.mark.parametrize("noise", [Gaussian(), Rademacher()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_some_rows_of_a_combination_are_those_of_the_whole(noise, dtype: torch.dtype) -> None:
    param = torch.linspace(-1, 1, 300 * 7).view(300, 7).to(dtype)
    terms = [(NoiseKey(0, 1, 0), 0.1), (NoiseKey(0, 1, 1), -0.2)]
    whole = combine(noise, terms, "w", param)
    assert whole.dtype == dtype
    exact = param.double() + sum(c * noise.sample(k, "w", param.shape, param.device).double() for k, c in terms)
    torch.testing.assert_close(whole.double(), exact, rtol=0, atol=1e-6 if dtype == torch.float32 else 8e-3)
    assert torch.equal(combine(noise, terms, "w", param, rows=(100, 233)), whole[100:233])
    combine(noise, terms, "w", param, out=param)
    assert torch.equal(param, whole)
