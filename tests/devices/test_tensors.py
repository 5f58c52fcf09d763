"""Tensors alive at a peak, against modules whose peak is known to the byte and against torch's own count."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from zo_sweeps.core.memory_parts import Part, continue_as, counted_as, current
from zo_sweeps.devices.tensors import WITHIN, Tensors

pytestmark = pytest.mark.unit
CPU = torch.device("cpu")
F = 4  # bytes of an fp32 number


def parts(tensors: Tensors) -> dict[Part, int]:
    return {part: size for part, size in tensors.at_peak().items() if size}


def allocated(work: Callable[[], object]) -> int:
    """The most bytes that work has from torch's CPU allocator at a time, temporaries of every operator included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def test_a_chain_of_layers_holds_two_activations_at_a_time() -> None:
    model = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(5)))
    x = torch.randn(8, 32)
    tensors = Tensors(CPU)
    for parameter in model.parameters():
        tensors.claim(parameter, Part.WEIGHTS)
    with torch.inference_mode(), tensors, counted_as(Part.ACTIVATIONS):
        model(x)
    # x is older than the block and nobody's: workspace. Input and output of a layer, but the first input is x.
    assert parts(tensors) == {
        Part.WEIGHTS: 5 * 32 * 32 * F,
        Part.ACTIVATIONS: 2 * 8 * 32 * F,
        Part.WORKSPACE: 8 * 32 * F,
    }


def test_views_are_no_memory_and_what_is_done_in_place_is_none_either() -> None:
    tensors = Tensors(CPU)
    with tensors, counted_as(Part.ACTIVATIONS):
        x = torch.ones(16, 4)
        y = x.view(4, 16).t()[1:].detach()
        y.add_(1).mul_(2)
        x.resize_(16, 4)
        torch.add(x, 1, out=x)
    assert parts(tensors) == {Part.ACTIVATIONS: 16 * 4 * F}


def test_a_tensor_that_grows_is_copied_and_then_counts_as_it_is() -> None:
    def grow() -> None:
        x = torch.ones(100)
        x.resize_(1000)
        x.resize_(10)

    tensors = Tensors(CPU)
    with tensors, counted_as(Part.LOGITS):
        grow()
    assert parts(tensors) == {Part.LOGITS: 1100 * F}
    assert allocated(grow) == 1100 * F


def test_a_peak_that_is_over_counts_and_the_moment_is_one() -> None:
    """Not each part's own peak: the parts are those of the moment at which most is alive."""
    tensors = Tensors(CPU)
    with tensors:
        with counted_as(Part.LOGITS):
            x = torch.ones(100)
        del x
        with counted_as(Part.ACTIVATIONS):
            y = torch.ones(300)
        del y
        with counted_as(Part.TRAINABLE):
            z = torch.ones(200)
        z += 1
    assert parts(tensors) == {Part.ACTIVATIONS: 300 * F}


def test_backpropagation_keeps_what_it_needs_and_a_gradient_can_be_claimed() -> None:
    n, width = 64, 16
    layer = nn.Linear(width, width, bias=False)
    x = torch.randn(n, width)
    tensors = Tensors(CPU)
    tensors.claim(layer.weight, Part.WEIGHTS)
    tensors.claim(x, Part.WORKSPACE)

    def mine(weight: torch.Tensor) -> None:
        assert weight.grad is not None
        tensors.regard(weight.grad, Part.TRAINABLE)

    handle = layer.weight.register_post_accumulate_grad_hook(mine)
    with tensors, counted_as(Part.ACTIVATIONS):
        loss = torch.tanh(layer(x)).square().sum()  # tanh keeps its result, square its input: the same one
        loss.backward()
    handle.remove()
    found = parts(tensors)
    # At most: tanh's result, the gradients of square (two factors) and of tanh; the weight's own comes after.
    assert sum(found.values()) == allocated_from_scratch(layer, x)
    assert found[Part.WEIGHTS] == width * width * F
    tensors = Tensors(CPU)
    with tensors:
        layer.weight.grad = None


def allocated_from_scratch(layer: nn.Linear, x: torch.Tensor) -> int:
    layer.weight.grad = None
    older = (layer.weight.numel() + x.numel()) * F
    return older + allocated(lambda: torch.tanh(layer(x)).square().sum().backward())


@pytest.mark.parametrize("rows", [1, 50])
def test_the_exponentials_within_logsumexp_count(rows: int) -> None:
    x = torch.randn(rows, 1000)
    tensors = Tensors(CPU)
    tensors.claim(x, Part.LOGITS)
    with tensors, counted_as(Part.LOGITS):
        torch.logsumexp(x, dim=-1)
    assert parts(tensors) == {Part.LOGITS: (2 * 1000 + 1) * rows * F}
    seen = x.nbytes + allocated(lambda: torch.logsumexp(x, dim=-1))
    assert 0 <= seen - sum(parts(tensors).values()) <= 2 * rows * F, "and the largest of every row"


def test_what_is_left_over_is_state_and_what_was_there_before_is_not() -> None:
    old = torch.ones(10)
    tensors = Tensors(CPU)
    with tensors:
        state = old + 1
        tensors.left_over(Part.TRAINABLE)
        state.add_(old)
    assert parts(tensors) == {Part.TRAINABLE: 10 * F, Part.WORKSPACE: 10 * F}


def test_the_first_claim_of_a_storage_holds() -> None:
    weight = torch.ones(10)
    tensors = Tensors(CPU)
    tensors.claim(weight, Part.TRAINABLE)
    tensors.claim(weight.view(2, 5), Part.WEIGHTS)
    with tensors:
        pass
    assert parts(tensors) == {Part.TRAINABLE: 10 * F}


def test_two_gradients_of_one_weight_are_trainable_state() -> None:
    table = nn.Embedding(50, 4)
    tensors = Tensors(CPU)
    tensors.claim(table.weight, Part.WEIGHTS)
    tensors.gradients_of(table.weight.shape)
    with tensors, counted_as(Part.LOGITS):
        (table(torch.arange(3)) @ table.weight.t()).sum().backward()
    assert parts(tensors)[Part.TRAINABLE] == 3 * 50 * 4 * F, "of the table, of the head, and their sum"


def test_a_sparse_matrix_is_its_parts() -> None:
    dense = torch.eye(20)
    tensors = Tensors(CPU)
    with tensors, counted_as(Part.SPARSE):
        starts, columns, values = (
            torch.arange(21, dtype=torch.int32),
            torch.arange(20, dtype=torch.int32),
            torch.ones(20),
        )
        matrix = torch.sparse_csr_tensor(starts, columns, values, (20, 20), check_invariants=False)
        with counted_as(Part.ACTIVATIONS):
            y = matrix @ dense
    assert parts(tensors)[Part.SPARSE] == (21 + 20 + 20) * F
    assert torch.equal(y, dense)


def test_marks_nest_end_with_an_error_and_are_reset_by_a_meter() -> None:
    with counted_as(Part.LOGITS):
        with pytest.raises(KeyError), counted_as(Part.ACTIVATIONS):
            {}["absent"]
        assert current() is Part.LOGITS
    assert current() is Part.WORKSPACE
    continue_as(Part.LOGITS)  # as a hook does after the backward pass of a mask
    with Tensors(CPU):
        assert current() is Part.WORKSPACE


def test_nothing_stays_installed_and_nothing_is_kept_alive() -> None:
    x = torch.ones(1000)
    tensors = Tensors(CPU)
    with tensors:
        y = x + 1
    before = tensors.at_peak()
    z = y + x  # after the block: not followed
    assert tensors.at_peak() == before
    del x, y, z, tensors
    gc.collect()
    assert not any(isinstance(thing, torch.UntypedStorage) and thing.nbytes() == 4000 for thing in gc.get_objects())


def test_every_operator_in_the_table_has_temporaries() -> None:
    for operator, size in WITHIN.items():
        x = torch.randn(10, 10)
        assert size(x) > 0
        assert allocated(lambda operator=operator, x=x: operator(x, [-1])) >= size(x)


@pytest.mark.gpu
def test_on_a_gpu_the_tensors_are_what_the_allocator_was_asked_for() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA")
    device = torch.device("cuda")
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4))).to(device)
    x = torch.randn(1024, 256, device=device)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with torch.inference_mode(), Tensors(device) as tensors:
        tensors.claim(x, Part.WORKSPACE)
        for parameter in model.parameters():
            tensors.claim(parameter, Part.WEIGHTS)
        model(x)
    asked = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    assert sum(tensors.at_peak().values()) <= asked
    assert sum(tensors.at_peak().values()) == 4 * 256 * 256 * F + 3 * 1024 * 256 * F
