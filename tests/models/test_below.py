"""The forward that a step's points share, below the blocks that a space changes: the losses of whole forwards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from tests.engine.conftest import Candidate, Example
from tests.models.test_families import FAMILIES, MASKED, OPTIONS, nudge, rows
from zo_sweeps.engine import losses, masks
from zo_sweeps.engine.batch import Batch, collate
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.evaluate import InPlace, evaluate
from zo_sweeps.engine.layers.low_rank import Wrapped
from zo_sweeps.engine.layers.sparse import Sparse
from zo_sweeps.engine.loss_noise import LossNoise
from zo_sweeps.engine.losses import score, token_logprobs
from zo_sweeps.engine.objectives.tokens import Tokens
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.quantized import Quantized
from zo_sweeps.engine.precisions.int8 import INT8
from zo_sweeps.engine.replay import digest, replay
from zo_sweeps.engine.schedules.constant import Constant
from zo_sweeps.engine.spaces.outliers import Outliers
from zo_sweeps.engine.step import Method
from zo_sweeps.engine.train import Scores, StepDone, of_batch, train
from zo_sweeps.engine.updates.momentum import Momentum
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import options
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.parts import Model
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey, Point, Theta
from zo_sweeps.methods.space import Found, InstalledSpace, LayerSpace
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.load import load

pytestmark = pytest.mark.unit

LAYERS, MOVED = 3, 1  # blocks, and those of them that are trained, from the last
SPACES = [name for name, one in registry.members("space").items() if issubclass(one, LayerSpace)]
POINTS = RGE(2, 1e-1).points(0, 1)
TEXTS = rows([12, 7, 9])


def config(family: str) -> dict[str, Any]:
    arch = dict(FAMILIES[family])
    arch |= {key: LAYERS for key in ("num_hidden_layers", "n_layer", "n_layers") if key in arch}
    if kinds := arch.get("layer_types"):
        arch["layer_types"] = [*kinds, kinds[0]]
    return arch


@cache
def model_of(family: str, coded: bool = False, dtype: torch.dtype = torch.float32) -> CausalModel:
    codes = INT8(compute="fp32") if coded else None
    return load(Model(source="random", arch=config(family)), dtype, "cpu", codes)


@contextmanager
def installed(
    name: str, family: str, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[CausalModel, InstalledSpace]]:
    """A space over the last blocks of a model, away from its initial values."""
    member: Any = registry.member("space", name)
    coded = member.theta is not Theta.FLOATS
    model = model_of(family, coded, dtype)
    space = member(blocks=MOVED, **{one.name: OPTIONS[one.name] for one in options(member) if one.name in OPTIONS})
    layers, mask = model.layers_of(space), None
    if space.needs_gradients:
        weights = {layer: model.module.get_submodule(layer).weight for layer in layers}
        mask = Found(masks.random(weights, 0.05, NoiseKey(0, 0, 0)), None)
    made = space.install(model.module, layers, 0, mask)
    bound = space.bind(INT8(compute="fp32")) if coded else space
    assert sum(param.numel() for param in made.params.values()) == bound.trainable(space.moved(model.arch))
    if theta_is_dense := space.theta is not Theta.CODES:
        nudge(made)
    try:
        yield model, made
    finally:
        made.uninstall()
        if not theta_is_dense:
            model_of.cache_clear()


def batch_of(model: CausalModel, packed: bool) -> Batch:
    batch = collate([Example((Candidate(tuple(text), 3),), 0) for text in TEXTS], model.pad_id, packed=packed)
    assert packed or not batch.attention_mask.all()  # there is padding
    return batch


def whole(model: CausalModel, batch: Batch) -> Callable[[int], Tensor]:
    """f by whole forwards, of which a step takes one for each group of its points."""
    return lambda P: losses.tokens(token_logprobs(model, batch, P), batch)


def from_one_copy(model: CausalModel, batch: Batch, blocks: int) -> Callable[[int], Tensor]:
    """f by whole forwards in which the first block that moves reads P copies of what it reads in a forward of one."""
    seen: list[Tensor] = []
    block = model.blocks[blocks]
    with torch.inference_mode(), block.register_forward_pre_hook(lambda _, args: seen.append(args[0])):
        model.hidden(batch.input_ids, batch.attention_mask, batch.positions)

    def f(P: int) -> Tensor:
        with block.register_forward_pre_hook(lambda _, args: (torch.cat(seen * P), *args[1:])):
            return whole(model, batch)(P)

    return f


@contextmanager
def counted(model: CausalModel, block: int) -> Iterator[list[int]]:
    """The rows of every forward of a block's output projection."""
    last = model.module.get_submodule(f"{model.arch.blocks}.{block}.{[*model.arch.projections.values()][-1]}")
    calls: list[int] = []
    with last.register_forward_pre_hook(lambda _, args: calls.append(args[0].shape[:-1].numel())):
        yield calls


def at(
    f: Callable[[int], Tensor],
    model: CausalModel,
    space: InstalledSpace,
    mode: Mode,
    noise: Perturbation | None = None,
    points: Sequence[Point] = POINTS,
) -> list[float]:
    return evaluate(f, model.module, space, noise or Gaussian(), points, mode)


CELLS = [
    *((name, family) for name in SPACES for family in ("llama", "gpt2", "bert")),
    *(("lora", family) for family in FAMILIES if family not in ("llama", "gpt2", "bert")),
]


@pytest.mark.parametrize(("name", "family"), CELLS)
def test_points_have_the_bits_of_whole_forwards(name: str, family: str) -> None:
    with installed(name, family) as (model, space):
        noise, points = cast(Perturbation, Gaussian()), POINTS
        if registry.member("space", name).theta is Theta.CODES:
            noise, points = Quantized(eps=2.0), RGE(2, 2.0).points(0, 1)
        for packed in (False, True) if family not in MASKED else (False,):
            batch = batch_of(model, packed)
            shared = lambda b=batch: of_batch(model, b, losses.tokens, space)
            with counted(model, LAYERS - MOVED - 1) as below, counted(model, LAYERS - MOVED) as above:
                found = at(shared(), model, space, Mode.SEQUENTIAL, noise, points)
            assert (len(below), len(above)) == (1, len(points))
            assert len({*found}) > 1
            assert found == at(whole(model, batch), model, space, Mode.SEQUENTIAL, noise, points)
            if not space.batched or model.arch.no_points:
                continue
            for mode in (Mode.OUTER, Mode.INNER, Mode.BOTH):
                with counted(model, 0) as below:
                    found = at(shared(), model, space, mode)
                assert len(below) == 1
                assert found == at(from_one_copy(model, batch, LAYERS - MOVED), model, space, mode)
                expected = torch.tensor(at(whole(model, batch), model, space, mode))
                torch.testing.assert_close(torch.tensor(found), expected, rtol=2e-6, atol=0)


def test_the_rounding_noise_of_losses_is_measured_as_of_whole_forwards() -> None:
    with installed("lora", "llama", torch.bfloat16) as (model, space):
        batch = batch_of(model, True)
        shared = [of_batch(model, batch, losses.tokens, space) for _ in range(2)]
        ours = LossNoise(*shared, model.module, lambda: 0.0)
        theirs = LossNoise(*[whole(model, batch)] * 2, model.module, lambda: 0.0)
        assert at(ours, model, space, Mode.SEQUENTIAL) == at(theirs, model, space, Mode.SEQUENTIAL)
        assert ours.result == theirs.result
        assert theirs.result is not None
        assert theirs.result[0] > 0


def test_points_visited_in_place_share_the_forward_too() -> None:
    with installed("lora", "llama") as (model, space):
        batch = batch_of(model, True)
        before = {name: param.detach().clone() for name, param in space.params.items()}
        expected = InPlace().losses(whole(model, batch), space.params, Gaussian(), POINTS)
        for name, param in space.params.items():
            param.data.copy_(before[name])
        with counted(model, 0) as below:
            found = InPlace().losses(of_batch(model, batch, losses.tokens, space), space.params, Gaussian(), POINTS)
        assert len(below) == 1
        assert found == expected


@pytest.mark.parametrize("name", ["full", "prefix", "lora"])
def test_nothing_is_shared_where_a_point_moves_the_first_block_or_what_is_in_none(name: str) -> None:
    model = copy.copy(model_of("llama"))
    model.module = copy.deepcopy(model.module)
    space = registry.member("space", name)()
    made = space.install(model.module, model.layers_of(space), 0)
    with counted(model, 0) as below:
        at(of_batch(model, batch_of(model, True), losses.tokens, made), model, made, Mode.SEQUENTIAL)
    assert len(below) == len(POINTS)
    assert space.untouched(model.arch) == 0


def test_a_mask_without_entries_in_the_first_blocks_leaves_them_as_they_are() -> None:
    model = model_of("llama")
    layer = model.layers_of(Outliers(targets=("down",), blocks=2))[0]
    made = Sparse(model.module, {layer: torch.tensor([3, 5])})
    with counted(model, 0) as below, counted(model, 1) as above:
        at(of_batch(model, batch_of(model, True), losses.tokens, made), model, made, Mode.SEQUENTIAL)
    made.uninstall()
    assert (len(below), len(above)) == (1, len(POINTS))


@pytest.mark.parametrize("mode", [Mode.SEQUENTIAL, Mode.INNER])
def test_a_run_is_that_of_whole_forwards_and_goes_on_from_its_log(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    method = Method(RGE(2, 1e-2), Gaussian(), Momentum(), mode)
    examples = [Example((Candidate(tuple(text), 3),), 0) for text in rows([12, 7, 9, 11, 8, 6])]
    digests: list[str] = []

    def run(log: list[Any]) -> list[Any]:
        with installed("lora", "llama") as (model, space):
            batch = lambda step: collate([examples[step % 6], examples[(step + 1) % 6]], model.pad_id)
            dev = lambda: Scores(score(model, examples, 0, Tokens(), torch.device("cpu"), gold_only=True).loss, 0, {})
            rates = Constant().over(1e-2, 6)
            events = train(
                method, model, space, batch, losses.tokens, rates, dev, seed=3, steps=6, eval_every=3, log=log
            )
            found = [replace(event, seconds=0) for event in events]
            digests.append(digest(space.params))
            return found

    ended = run([])
    log = [event.coefs for event in ended if isinstance(event, StepDone)]
    resumed = run(log[:4])
    assert str(resumed[-2:]) == str(ended[-2:])  # the last step, and dev
    with installed("lora", "llama") as (_, space):
        replay(method, space.params, log, Constant().over(1e-2, 6), seed=3)
        digests.append(digest(space.params))
    monkeypatch.setattr(Wrapped, "untouched", lambda *_: 0)
    assert str(run([])) == str(ended)  # losses, coefficients, rounding noise and dev losses
    assert len({*digests}) == 1
