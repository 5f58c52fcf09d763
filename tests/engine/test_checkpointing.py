"""Gradient checkpointing, bf16 weights and 8-bit states: the same gradients, less memory, and as much as estimated."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.profiler import profile

from tests.engine.conftest import TinyModel, make_examples, tiny_model
from zo_sweeps.devices.estimate import Batches, ForwardRows, memory_by_part
from zo_sweeps.engine import first_order, losses
from zo_sweeps.engine.batch import Batch, collate
from zo_sweeps.engine.first_order import checkpointed
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.engine.spaces.full import Full
from zo_sweeps.engine.train import Scores, StepDone
from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.engine.updates.adam_8bit import Adam8bit
from zo_sweeps.methods.kinds.fo import FirstOrder
from zo_sweeps.methods.parts import Model
from zo_sweeps.methods.registry import member
from zo_sweeps.methods.space import FullModel
from zo_sweeps.methods.update import Update
from zo_sweeps.models.load import load

pytestmark = pytest.mark.unit


def layers(model: TinyModel) -> list[torch.nn.Module]:
    return list(model.module.get_submodule("model.layers").children())


def gradients(model: TinyModel) -> tuple[float, list[torch.Tensor]]:
    batch = collate(make_examples(6), pad_id=0)
    params = list(model.module.requires_grad_(True).parameters())
    loss = losses.candidates(token_logprobs(model, batch), batch)[0]
    return loss.item(), list(torch.autograd.grad(loss, params))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_are_the_same_to_the_bit(tied: bool, dtype: torch.dtype) -> None:
    model = tiny_model(tied=tied, layers=3)
    model.module.to(dtype)
    plain, wanted = gradients(model)
    runs: list[int] = []
    hooks = [layer.register_forward_hook(lambda *_: runs.append(1)) for layer in layers(model)]
    counts: list[int] = []
    inner = layers(model)[0].self_attn.register_forward_hook(lambda *_: counts.append(1))
    with checkpointed(layers(model)):
        loss, found = gradients(model)
        assert (len(runs), len(counts)) == (3, 2), "each layer is called once, and computed once more"
        with torch.no_grad():
            model.hidden(torch.ones(1, 4, dtype=torch.long))
        assert len(counts) == 3, "once without gradients"
    for hook in (*hooks, inner):
        hook.remove()
    assert loss == plain
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert not any("forward" in vars(layer) for layer in layers(model))


def test_one_block_within_another_leaves_it_as_it_was() -> None:
    """The gradients of a first-order trial with checkpointing are measured in a block of their own."""
    model = tiny_model(layers=2)
    counts: list[int] = []
    inner = layers(model)[0].self_attn.register_forward_hook(lambda *_: counts.append(1))
    with checkpointed(layers(model)):
        with checkpointed(layers(model)):
            gradients(model)
        counts.clear()
        gradients(model)
        assert len(counts) == 2
    counts.clear()
    gradients(model)
    inner.remove()
    assert len(counts) == 1


ARCH = {
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
TOKENS = 128


def measured_and_estimated(update: Update, dtype: torch.dtype, recomputes: bool, batch: int) -> tuple[float, float]:
    """The peak of the bytes of all tensors over two steps, by the allocator's own events, and the estimate."""
    with profile(profile_memory=True) as seen:
        model = load(Model(source="random", arch=ARCH), dtype, "cpu")
        params = list(model.module.requires_grad_(True).parameters())
        stepper = update.optimizer([{"params": params, "weight_decay": 0.0}])
        ids = torch.randint(5, 4000, (batch, TOKENS))
        blocks = model.module.get_submodule(model.arch.blocks).children()
        with checkpointed(blocks) if recomputes else nullcontext():
            for _ in range(2):
                model.head(model.hidden(ids)[:, -1]).float().log_softmax(-1)[:, 3].mean().backward()
                stepper.step()
                stepper.zero_grad(set_to_none=True)
    live = peak = 0
    events = (event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]")
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    kind = FirstOrder(weights="bf16" if dtype.itemsize == 2 else "fp32", gradient_checkpointing=recomputes)
    precision = member("precision", kind.weights)()
    batches = Batches(TOKENS, ForwardRows(batch * TOKENS, batch))
    parts = memory_by_part(model.arch, batches, kind, precision, Full(), update, trainable=model.arch.parameters)
    estimate = sum(parts.values())
    return peak, estimate


@pytest.mark.long
def test_memory_is_smaller_by_each_part_and_as_estimated() -> None:
    cases = [
        (Adam(), torch.float32, False),
        (Adam8bit(), torch.float32, False),
        (Adam8bit(), torch.bfloat16, False),
        (Adam8bit(), torch.bfloat16, True),
    ]
    peaks = []
    for update, dtype, recomputes in cases:
        measured, estimate = measured_and_estimated(update, dtype, recomputes, batch=16)
        assert 1 <= estimate / measured < 1.25, (update.name, dtype, recomputes)
        peaks.append(measured)
    parameters = 7_475_456
    assert peaks[0] - peaks[1] == pytest.approx(parameters * (8 - 65 / 32), rel=0.1), "states of 2.03 bytes, and not 8"
    assert peaks[2] < 0.6 * peaks[1], "weights, gradients and activations of half the bytes"
    assert peaks[3] < 0.4 * peaks[2], "one layer's activations, and not eight"


def batch_of(step: int) -> Batch:
    return collate(make_examples(8, seed=step), pad_id=0)


@pytest.mark.parametrize(("lr", "some"), [(1e-7, True), (0.1, False)])
def test_updates_that_bf16_loses_are_measured(lr: float, some: bool) -> None:
    """Adam's first step is lr on each weight with a gradient: far below, and far above, the spacing of most weights."""
    model = tiny_model()
    model.module.to(torch.bfloat16)
    events = first_order.train(
        model,
        FullModel(model.module),
        batch_of,
        losses.candidates,
        Adam8bit(lr=lr),
        lambda: Scores(0.0, 0.0, {}),
        steps=1,
        eval_every=1,
        seed=0,
    )
    (lost,) = (event.lost for event in events if isinstance(event, StepDone))
    assert lost > 0.9 if some else lost < 0.1
