"""A backward pass of one layer at a time: plain backpropagation's gradients and steps, and nothing kept but inputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.engine.conftest import TinyModel, make_examples, targets, tiny_model
from zo_sweeps.engine import first_order, losses
from zo_sweeps.engine.batch import Batch, collate
from zo_sweeps.engine.first_order import Layerwise
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.engine.precisions.nf4 import NF4
from zo_sweeps.engine.spaces.dora import DoRA
from zo_sweeps.engine.spaces.lora import LoRA
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.spaces.vera import VeRA
from zo_sweeps.engine.train import Evaluated, Scores, StepDone
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.kind import part_of
from zo_sweeps.methods.space import InstalledSpace, Space
from zo_sweeps.methods.update import Update

pytestmark = pytest.mark.unit
SPACES: list[Space] = [LoRAFA(rank=4, alpha=8.0), LoRA(rank=4, alpha=8.0), DoRA(rank=4, alpha=8.0), VeRA(rank=4)]
STEPS = 4
ROUNDING = 256 * 2**-24  # of the largest entry: sums over up to some hundred tokens, in another order


def layers(model: TinyModel) -> list[torch.nn.Module]:
    return list(model.module.get_submodule("model.layers").children())


def installed(definition: Space, coded: bool = False) -> tuple[TinyModel, InstalledSpace]:
    """A model of three layers with the space in all its projections, away from its start."""
    model = tiny_model(layers=3)
    names = targets(model, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"))
    if coded:
        for name in names:
            layer = model.module.get_submodule(name)
            model.module.set_submodule(name, NF4(compute="fp32").stored(layer, layer.weight.detach()))
    space = definition.install(model.module, names, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for param in space.params.values():
            param += 0.1 * torch.randn(param.shape, generator=generator)
    return model, space


def batch_of(step: int, rows: int = 20, **collated: bool) -> Batch:
    return collate(make_examples(rows, seed=step), pad_id=0, **collated)


def plain(model: TinyModel, space: InstalledSpace, batch: Batch) -> dict[str, Tensor]:
    for param in space.params.values():
        param.requires_grad_(True)
    loss = losses.candidates(token_logprobs(model, batch), batch)[0]
    return dict(zip(space.params, torch.autograd.grad(loss, [*space.params.values()]), strict=True))


def by_layer(model: TinyModel, space: InstalledSpace, batch: Batch) -> Iterator[dict[str, Tensor]]:
    """The gradients that there are after the loss, and after each layer, from the last one on."""
    passes = Layerwise(model, layers(model))
    losses.candidates(passes.token_logprobs(batch), batch)[0].backward()
    for layer in (None, *reversed(layers(model))):
        if layer is not None:
            passes.backward(layer)
        yield {name: param.grad for name, param in space.params.items() if param.grad is not None}


@pytest.mark.parametrize("coded", [False, True], ids=["fp32", "nf4"])
@pytest.mark.parametrize("definition", SPACES, ids=lambda space: space.name)
def test_gradients_are_those_of_plain_backpropagation(definition: Space, coded: bool) -> None:
    model, space = installed(definition, coded)
    batch = batch_of(1)
    wanted = plain(model, space, batch)
    counts = []
    for found in by_layer(model, space, batch):
        counts.append(len(found))
    assert counts == [len(wanted) * done // 3 for done in range(4)]
    for name, gradient in wanted.items():
        scale = gradient.abs().max().item()
        assert scale > 0
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=ROUNDING * scale)


COLLATED = {
    "packed": {},
    "a row per candidate": {"packed": False},
    "shared prompts": {"shared": True},
    "all logits": {"packed": False, "every_position": True},
    "gold alone": {"gold_only": True},
}


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("collated", COLLATED.values(), ids=COLLATED)
def test_any_batch_has_the_log_probabilities_and_gradients_of_all_rows_at_once(
    collated: dict[str, bool], rows: int
) -> None:
    model, space = installed(LoRAFA(rank=4, alpha=8.0))
    batch = batch_of(1, rows, **collated)
    wanted = plain(model, space, batch)
    ours = Layerwise(model, layers(model)).token_logprobs(batch)
    torch.testing.assert_close(ours, token_logprobs(model, batch), rtol=1e-5, atol=1e-5)
    *_, found = by_layer(model, space, batch)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=ROUNDING * gradient.abs().max().item())


def trained(definition: Space, coded: bool, update: Update, by_layers: bool) -> tuple[list[float], dict[str, Tensor]]:
    model, space = installed(definition, coded)
    events = first_order.train(
        model, space, batch_of, losses.candidates, update, lambda: Scores(0.0, 0.0, {}),
        steps=STEPS, eval_every=2, seed=0, layers=layers(model) if by_layers else (),
    )  # fmt: skip
    done = list(events)
    assert [event.step for event in done if isinstance(event, Evaluated)] == [2, 4]
    assert all(param.grad is None and not param.requires_grad for param in space.params.values())
    assert not any("forward" in vars(layer) for layer in layers(model))
    found = [event.loss for event in done if isinstance(event, StepDone)]
    return found, {name: param.detach() for name, param in space.params.items()}


@pytest.mark.parametrize("coded", [False, pytest.param(True, marks=pytest.mark.long)], ids=["fp32", "nf4"])
@pytest.mark.parametrize("update", [SGD(lr=0.5, weight_decay=0.1), Adam(lr=0.01, eps=1e-3)], ids=["SGD", "Adam"])
@pytest.mark.parametrize("definition", SPACES[:2], ids=lambda space: space.name)
def test_steps_are_those_of_plain_backpropagation(definition: Space, update: Update, coded: bool) -> None:
    wanted, theta = trained(definition, coded, update, by_layers=False)
    found, moved = trained(definition, coded, update, by_layers=True)
    assert found == pytest.approx(wanted, rel=1e-5)
    assert found[-1] != pytest.approx(found[0], rel=1e-2)
    for name, value in theta.items():
        torch.testing.assert_close(moved[name], value, rtol=1e-4, atol=1e-5)


def test_a_parameter_of_several_layers_moves_once_with_the_sum_of_their_gradients() -> None:
    """Its layers are all computed with the value that it had in the forward."""
    model, space = installed(LoRAFA(rank=4, alpha=8.0))
    first, last = (layer.mlp.up_proj for layer in (layers(model)[0], layers(model)[2]))
    last.B = first.B
    params = {name: param for name, param in space.params.items() if name != "model.layers.2.mlp.up_proj.B"}
    owned = Layerwise(model, layers(model)).owned(params)
    assert [len(own) for own in owned] == [7, 7, 6]
    assert "model.layers.0.mlp.up_proj.B" in owned[0]
    space.params = params
    batch = batch_of(1)
    wanted = plain(model, space, batch)
    *_, found = by_layer(model, space, batch)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=ROUNDING * gradient.abs().max().item())


def test_texts_of_a_packed_row_are_computed_apart_and_those_before_and_after_are_whole() -> None:
    model, space = installed(LoRAFA(rank=4, alpha=8.0))
    batch, seen = batch_of(1), []
    assert batch.positions is not None
    hook = layers(model)[1].mlp.register_forward_hook(lambda _, x, y: seen.append(y[..., 0].numel()))
    list(by_layer(model, space, batch))
    hook.remove()
    tokens, longest = batch.input_ids.numel(), int(batch.positions.max()) + 1
    assert sum(seen) == 2 * tokens
    assert longest < tokens / 8, "so that a part of an eighth holds some"
    padding = max((batch.attention_mask == 0).sum(dim=1).tolist())
    assert max(seen) <= part_of(tokens) + padding


def test_each_layer_is_computed_twice_for_an_eighth_of_the_rows_at_a_time() -> None:
    model, space = installed(LoRAFA(rank=4, alpha=8.0))
    batch, seen = batch_of(1, packed=False), []
    hook = layers(model)[1].mlp.register_forward_hook(lambda _, x, y: seen.append(len(y)))
    heads = model.module.lm_head.register_forward_hook(lambda _, x, y: seen.append(-len(y)))
    for _ in by_layer(model, space, batch):
        pass
    hook.remove(), heads.remove()
    assert len(batch.input_ids) == 40
    assert [n for n in seen if n > 0] == [part_of(40)] * 16 == [5] * 16
    places = len(batch.place_row)
    assert max(-n for n in seen if n < 0) == part_of(places) < places
    assert -sum(n for n in seen if n < 0) == 2 * places


def test_a_loss_that_is_not_finite_moves_nothing() -> None:
    model, space = installed(LoRAFA(rank=4, alpha=8.0))
    with torch.no_grad():
        space.params["model.layers.1.mlp.up_proj.B"][0, 0] = torch.inf
    before = copy.deepcopy(dict(space.params))
    steps = first_order.train(
        model, space, batch_of, losses.candidates, SGD(lr=0.5), lambda: Scores(0.0, 0.0, {}),
        steps=1, eval_every=1, seed=0, layers=layers(model),
    )  # fmt: skip
    with pytest.raises(DivergedError, match="non-finite loss at step 1, seed 0: nan"):
        next(steps)
    assert all(torch.equal(param, before[name]) for name, param in space.params.items())
