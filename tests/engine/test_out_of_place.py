"""A full space's points, made in parts: the bits of whole weights, and theta and the model as they were."""

from __future__ import annotations

import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM

from tests.engine.conftest import TinyModel, make_examples, tiny_model
from zo_sweeps.engine import losses, noise
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.direction import combine
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.estimators.rge_one_sided import RGEOneSided
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.layers import weight_only
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.rademacher import Rademacher
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import FullModel

pytestmark = pytest.mark.unit


def points_losses(model: TinyModel, noise) -> list[float]:
    batch = collate(make_examples(3), pad_id=0)
    objective = lambda P: losses.candidates(losses.token_logprobs(model, batch, P), batch)
    return evaluate(objective, model.module, FullModel(model.module), noise, RGE(2, 1e-2).points(0, 1), Mode.SEQUENTIAL)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("values", [1, 100, 1 << 20])
def test_losses_do_not_depend_on_how_many_rows_are_made_at_a_time(
    values: int, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Whole(Perturbation):  # not a PartialPerturbation: only whole directions
        sample = Gaussian.sample

    expected = points_losses(tiny_model(tied=tied), Whole())
    monkeypatch.setattr(weight_only, "ON_CPU", values)
    assert points_losses(tiny_model(tied=tied), Gaussian()) == pytest.approx(expected, rel=1e-6)


def test_the_model_is_left_as_it_was(model: TinyModel) -> None:
    before = {name: param.clone() for name, param in model.module.named_parameters()}
    points_losses(model, Gaussian())
    assert all(torch.equal(param, before[name]) for name, param in model.module.named_parameters())
    assert not any("forward" in vars(layer) or layer._forward_hooks for layer in model.module.modules())


def tiny_opt(dtype: torch.dtype) -> OPTForCausalLM:
    """Linears with biases that are not zero."""
    sizes = {"vocab_size": 97, "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = OPTForCausalLM(OPTConfig(**sizes, num_attention_heads=4, max_position_embeddings=64, dropout=0.0))
        for name, param in module.named_parameters():
            torch.nn.init.normal_(param, mean=float("norm.weight" in name), std=0.2)
    return module.to(dtype).eval().requires_grad_(False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("values", [1 << 8, 1 << 20])
def test_theta_itself_rounds_as_a_point_beside_it(
    values: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """f(theta + eps z) - f(theta) is 0 where z is 0: nothing else than z makes a one-sided difference."""

    class Nothing(Gaussian):
        def combine(self, terms, name, shape, device, *, base=None, out=None, start=0):
            return super().combine(
                [(key, 0.0) for key, _ in terms], name, shape, device, base=base, out=out, start=start
            )

    monkeypatch.setattr(weight_only, "ON_CPU", values)
    module, ids = tiny_opt(dtype), torch.arange(2, 62).view(6, 10)
    logits = []

    def objective(points: int) -> torch.Tensor:
        logits.append(module(ids).logits)
        return logits[-1].float().square().mean().reshape(1)

    points = RGEOneSided(2, 1e-3).points(0, 1)
    evaluate(objective, module, FullModel(module), Nothing(), points, Mode.SEQUENTIAL)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [None, (100, 233)])
def test_half_precision_is_combined_in_one_pass(
    rows: tuple[int, int] | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gets theta and the result in their own dtype: no direction is stored in fp32."""
    param = torch.linspace(-1, 1, 300 * 7).view(300, 7).to(dtype)
    terms = [(NoiseKey(0, 1, 0), 0.1), (NoiseKey(0, 1, 1), -0.2)]
    expected = combine(Gaussian(), terms, "w", param, rows=rows)
    right, given = noise._runner, []

    def recorded(out: torch.Tensor, base: torch.Tensor | None, of_signs: bool) -> noise.Run:
        given.append((out.dtype, None if base is None else base.dtype))
        return right(out, base, of_signs)

    monkeypatch.setattr(noise, "_runner", recorded)
    assert torch.equal(combine(Gaussian(), terms, "w", param, rows=rows), expected)
    combine(Gaussian(), terms, "w", param, out=param)
    assert given == [(dtype, dtype)] * 2


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
