"""Several points of the full space in one forward: as one after the other, for every kind of module and layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

from tests.engine.conftest import make_examples, tiny_model
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.direction import combine
from zo_sweeps.engine.estimators.es import ES
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.estimators.rge_one_sided import RGEOneSided
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.layers import weight_only
from zo_sweeps.engine.perturbations.low_rank import LowRank
from zo_sweeps.engine.replay import replay
from zo_sweeps.engine.step import Method, RunState, step
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import FullModel

pytestmark = pytest.mark.unit

WIDE = {"max_position_embeddings": 64, "hidden_size": 32}


def opt() -> nn.Module:
    """Biases, learned positions in a class of their own, a tied head."""
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=97,
            word_embed_proj_dim=16,
            ffn_dim=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            dropout=0.0,
            **WIDE,
        )
    )


def gpt2() -> nn.Module:
    """Conv1D, positions that all rows share, a tied head."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64))


def scattered(make: Callable[[], nn.Module]) -> nn.Module:
    """Values at which every parameter matters, biases included."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = make()
        for name, param in module.named_parameters():
            nn.init.normal_(param, mean=float(param.dim() == 1 and "weight" in name), std=0.2)
    return module.eval().requires_grad_(False)


def of_logits(module: nn.Module) -> Callable[[int], Tensor]:
    ids = torch.arange(2, 62).view(3, 20) % 97

    def objective(points: int) -> Tensor:
        logits = module(ids.repeat(points, 1)).logits.view(points, -1)
        return logits.square().mean(dim=1)

    return objective


def of_answers(model) -> Callable[[int], Tensor]:
    batch = collate(make_examples(3), pad_id=0)
    return lambda P: losses.candidates(losses.token_logprobs(model, batch, P), batch)


MODELS = {
    "llama": lambda: (lambda model: (model.module, of_answers(model)))(tiny_model(tied=False)),
    "llama, tied": lambda: (lambda model: (model.module, of_answers(model)))(tiny_model(tied=True)),
    "opt": lambda: (lambda module: (module, of_logits(module)))(scattered(opt)),
    "gpt2": lambda: (lambda module: (module, of_logits(module)))(scattered(gpt2)),
}


@pytest.mark.parametrize("estimator", [RGE(3, 0.02), RGEOneSided(3, 0.02)], ids=["two-sided", "one-sided"])
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_points_in_one_forward_have_the_losses_of_one_after_the_other(name: str, rank: int, estimator) -> None:
    module, objective = MODELS[name]()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    noise, points, space = LowRank(rank), estimator.points(0, 1), FullModel(module)
    expected = evaluate(objective, module, space, noise, points, Mode.SEQUENTIAL)
    assert max(expected) - min(expected) > 100 * 1e-6 * max(expected)  # directions matter
    for mode in (Mode.OUTER, Mode.INNER, Mode.BOTH):
        assert evaluate(objective, module, space, noise, points, mode) == pytest.approx(expected, rel=1e-6)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert not any("forward" in vars(layer) for layer in module.modules())


@pytest.mark.parametrize("name", MODELS)
def test_each_parameter_is_moved_by_its_own_direction(name: str) -> None:
    """With every other parameter frozen: no parameter is left out, and none takes another's direction."""
    module, objective = MODELS[name]()
    noise, points = LowRank(2), RGE(1, 0.05).points(0, 1)
    for key, param in module.named_parameters():
        space = FullModel(module)
        space.params = {key: param}
        expected = evaluate(objective, module, space, noise, points, Mode.SEQUENTIAL)
        assert evaluate(objective, module, space, noise, points, Mode.BOTH) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_an_update_in_parts_has_the_bits_of_whole_directions(
    rank: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise, terms = LowRank(rank), [(NoiseKey(1, 1, query), 0.3 - 0.2 * query) for query in range(3)]
    theta = torch.randn(75, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole = sum(noise.sample(key, "w", theta.shape, theta.device) * weight for key, weight in terms)
    monkeypatch.setattr(weight_only, "ON_CPU", 40 * 16)
    assert torch.equal(combine(noise, terms, "w", theta), (whole + theta).to(dtype))
    assert torch.equal(combine(noise, terms, "w", theta, out=theta), theta)


@pytest.mark.parametrize("mode", [Mode.OUTER, Mode.BOTH])
def test_the_points_of_a_forward_can_be_limited(mode: Mode) -> None:
    model, noise, points, held = tiny_model(tied=True), LowRank(1), ES(4, 0.02).points(0, 1), []
    space, answers = FullModel(model.module), of_answers(model)

    def objective(count: int) -> Tensor:
        held.append(count)
        return answers(count)

    expected = evaluate(objective, model.module, space, noise, points, mode)
    for most in (1, 3, 4, 100):
        held.clear()
        assert evaluate(objective, model.module, space, noise, points, mode, most) == pytest.approx(expected, rel=1e-6)
        assert max(held) == min(most, 8 if mode is Mode.BOTH else 4)
        assert sum(held) == 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(75, 40), (1, 40), (40, 1)])
def test_directions_added_as_one_product_are_their_sum(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """In half precision too: summed in fp32, rounded once; at most one number of 2,000 rounds to its neighbour."""
    terms = [(NoiseKey(1, 1, query), 0.3 - 0.2 * query) for query in range(5)]
    theta = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = combine(LowRank(2), terms, "w", theta)
    found = combine(LowRank(2, sum="product"), terms, "w", theta.clone(), out=theta)
    assert found is theta
    torch.testing.assert_close(found, expected)
    assert dtype == torch.float32 or int((found != expected).sum()) <= theta.numel() / 2000


@pytest.mark.parametrize("how", ["terms", "product"])
def test_a_run_is_replayed_from_its_log(how: str) -> None:
    """The weights after steps whose points shared a forward, and of their log alone, without one."""
    model, method = tiny_model(tied=True), Method(RGE(2, 1e-2), LowRank(2, 2, sum=how), SGD(), Mode.BOTH)
    space, objective, logged = FullModel(model.module), of_answers(model), []
    for number in range(1, 5):
        estimate, _ = step(
            method.bind(space.params), model.module, space, objective, RunState(), seed=3, step=number, lr=1e-2
        )
        logged.append(estimate.coefs)
    again = FullModel(tiny_model(tied=True).module)
    replay(method, again.params, logged, lambda _: 1e-2, seed=3)
    assert all(torch.equal(param, again.params[name]) for name, param in space.params.items())
    untouched = FullModel(tiny_model(tied=True).module).params
    assert not any(torch.equal(param, untouched[name]) for name, param in space.params.items())
