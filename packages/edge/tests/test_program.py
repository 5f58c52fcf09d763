"""Exported programs in ExecuTorch's runtime against PyTorch: the engine's noise and theta to the bit, its losses."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("executorch", reason="needs the extra [edge]")

from tests.models.common import TINY, make
from zo_sweeps.engine import noise
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.spaces.dora import DoRA
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.spaces.prefix import PrefixTuning
from zo_sweeps.engine.spaces.random_subset import RandomSubset
from zo_sweeps.engine.spaces.vera import VeRA
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import NoiseKey, Point
from zo_sweeps.methods.space import InstalledSpace, Space
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.load import load
from zo_sweeps_edge.export import compiled, export, forward_inputs
from zo_sweeps_edge.noise import GaussianNoise, padded
from zo_sweeps_edge.program import APPLY, FORWARD, Calls, Program
from zo_sweeps_edge.rows import Frame

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess, pytest.mark.usefixtures("one_thread")]

B, EPS, LR = 2, 1e-2, 0.05
FRAME = Frame(shared=True, slots=2, places=2, tokens=40)
# With grouped-query heads, and the approximate GELU, which XNNPACK's delegate would compute as the exact one. Other
# families: test_lowered.py.
GEMMA = {**TINY["llama"], "model_type": "gemma", "head_dim": 16, "initializer_range": 0.2, "tie_word_embeddings": True}


def loaded(data: bytes) -> Any:
    from executorch.runtime import Runtime

    return Runtime.get().load_program(data)


def delegates(data: bytes, method: str) -> int:
    from executorch.exir._serialize._program import deserialize_pte_binary

    plans = {plan.name: plan for plan in deserialize_pte_binary(data).program.execution_plan}
    return len(plans[method].delegates)


def words(step: int, q: int, names: tuple[str, ...]) -> Tensor:
    each = [[noise.words_of(NoiseKey(0, step, query), name) for name in names] for query in range(q)]
    return torch.tensor(each, dtype=torch.int32)


@pytest.mark.parametrize("delegated", [True, pytest.param(False, marks=pytest.mark.long)], ids=["xnnpack", "portable"])
def test_every_element_of_the_noise_has_the_engines_bits(delegated: bool) -> None:
    """Words near the borders of an octave, and of the halves of its mantissas, are among two million counters."""
    sizes, keys = [2**22, 1, 3000], [NoiseKey(3, 17, 2), NoiseKey(3, 18, 0)]
    names = [f"layers.{i}.B" for i in range(len(sizes))]
    address = torch.tensor([[noise.words_of(key, name) for name in names] for key in keys], dtype=torch.int32)
    traced = torch.export.export(GaussianNoise(sizes), (address,), strict=False)
    data, _ = compiled({FORWARD: traced}, [FORWARD] if delegated else [])
    program = loaded(data)
    assert delegates(data, FORWARD) == (2 if delegated else 0), "before and after the root, in the loop's body"
    (z,) = program.load_method(FORWARD).execute([address])
    start = 0
    for name, size in zip(names, sizes, strict=True):
        for direction, key in zip(z, keys, strict=True):
            assert torch.equal(direction[start : start + size], noise.gaussian(key, name, torch.Size([size])))
        start += padded(size)
    assert start == z.shape[1]


def terms(scores: Tensor, gold: Tensor) -> Tensor:
    return -scores.log_softmax(2).gather(2, gold.unsqueeze(2)).squeeze(2)


@cache
def exported(member: Space, layers: int, dtype: torch.dtype) -> tuple[CausalModel, InstalledSpace, Program, bytes]:
    model = load(make(source="random", arch={**GEMMA, "num_hidden_layers": layers}), dtype, "cpu")
    targets = list(model.target_modules(member.layers)) if member.layers else []
    space = member.install(model.module, targets, 0)
    noise = GaussianNoise([param.numel() for param in space.params.values()])
    return model, space, *export(model, space, noise, Calls(1, Mode.BOTH), FRAME, B, terms)


@pytest.mark.parametrize(
    ("member", "layers", "dtype"),
    [
        pytest.param(LoRAFA(), 2, torch.float32, marks=pytest.mark.long),  # test_trials.py runs one of one layer
        pytest.param(DoRA(), 1, torch.float32, marks=pytest.mark.long),
        pytest.param(VeRA(rank=16), 1, torch.float32, marks=pytest.mark.long),
        pytest.param(PrefixTuning(), 1, torch.float16, marks=pytest.mark.long),
        pytest.param(RandomSubset(density=0.05), 1, torch.float32, marks=pytest.mark.long),
    ],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_a_step_has_the_engines_theta_and_its_losses(member: Space, layers: int, dtype: torch.dtype) -> None:
    """Losses differ by the rounding of sums of up to 48 products per layer, in the model's dtype; theta by nothing."""
    model, space, program, data = exported(member, layers, dtype)
    calls, q = program.calls, program.calls.q
    initial = {key: param.detach().clone() for key, param in space.params.items()}
    methods = loaded(data)
    forward, update = methods.load_method(FORWARD), methods.load_method(APPLY)
    draw, P = torch.Generator().manual_seed(0), calls.points
    zeros = forward_inputs(calls, FRAME, B, len(program.names))
    past, grads, lr = words(1, q, program.names), torch.arange(1.0, q + 1).double() / 2, torch.tensor([LR]).double()
    moves = [(NoiseKey(0, 1, query), -LR * (float(grads[query]) / q)) for query in range(q)]

    def f(points: int) -> Tensor:
        """The losses of the rows in PyTorch."""
        hidden = model.hidden(ids[:B].repeat(points, 1))
        places = hidden.gather(1, columns[: points * B].unsqueeze(2).expand(-1, -1, hidden.shape[2]))
        logprobs = model.head(places.flatten(0, 1)).float().log_softmax(1).unflatten(0, (-1, FRAME.places))
        chosen = (logprobs.gather(2, tokens[: points * B]) * weights[: points * B]).sum(1)
        return terms(chosen.view(points, B, FRAME.slots), gold[:points]).mean(1)

    for length in (40, 8, 24):
        ids = torch.randint(5, 4000, (B, length), generator=draw).repeat(P, 1)
        columns = torch.tensor([[length - 2, length - 1], [0, length - 3]]).repeat(P, 1)
        tokens = torch.randint(5, 4000, (B, FRAME.places, FRAME.slots), generator=draw).repeat(P, 1, 1)
        weights = torch.rand(B, FRAME.places, FRAME.slots, generator=draw).repeat(P, 1, 1)
        gold = torch.tensor([0, 1]).repeat(P, 1)
        rows = (ids, columns, tokens, weights, zeros[4], torch.full((P, B), 1 / B), gold)
        update.execute((past, grads * 0, lr, torch.ones(1, dtype=torch.int64)))
        losses, _ = forward.execute((*rows, words(2, q, program.names), torch.tensor([EPS]), past, grads, lr))
        losses = losses.clone()
        (theta,) = update.execute((past, grads * 0, lr, torch.zeros(1, dtype=torch.int64)))
        for key, start in zip(program.names, program.starts, strict=True):
            param = space.params[key]
            param.data = noise.combine(moves, key, param.shape, base=initial[key])
            assert torch.equal(theta[start : start + param.numel()].view(param.shape), param)
        points = [Point(NoiseKey(0, 2, query), sign * EPS) for query in range(q) for sign in (1, -1)]
        expected = torch.tensor(evaluate(f, model.module, space, Gaussian(), points, Mode.BOTH))
        assert (losses - expected).abs().max() <= 16 * torch.finfo(dtype).eps * expected.max()
        assert len(set(losses.tolist())) == P


@pytest.mark.long
def test_one_delegate_has_the_whole_model() -> None:
    """What else XNNPACK takes are the few operations on inputs and on the answers' logits: for any number of layers."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    *_, data = exported(LoRAFA(), 2, torch.float32)
    plans = {plan.name: plan for plan in deserialize_pte_binary(data).program.execution_plan}
    kernels = {operator.name for operator in plans[FORWARD].operators}
    assert not kernels & {"aten::mean", "aten::_softmax", "aten::bmm", "aten::linear", "aten::permute_copy"}
    assert delegates(data, APPLY) == 0, "its bits are those of ExecuTorch's own kernels"
