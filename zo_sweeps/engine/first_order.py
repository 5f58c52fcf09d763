"""First-order baselines: backpropagation through the same space, batches and loss, all at once or layer by layer."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zo_sweeps.core.memory_parts import Part, continue_as, counted_as
from zo_sweeps.engine.batch import Batch
from zo_sweeps.engine.linear import replaced
from zo_sweeps.engine.losses import Loss, logprobs_at, token_logprobs
from zo_sweeps.engine.rounding import LostUpdates
from zo_sweeps.engine.train import Evaluated, Scores, StepDone, evaluated_at, evaluation_points, no_joules
from zo_sweeps.engine.types import DivergedError, LanguageModel
from zo_sweeps.methods.kind import part_of
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.methods.update import Params, Update


def train(
    model: LanguageModel,
    space: InstalledSpace,
    batches: Callable[[int], Batch],
    loss: Loss,
    update: Update,
    evaluate_dev: Callable[[], Scores],
    *,
    steps: int,
    eval_every: int,
    seed: int,
    autocast: torch.dtype | None = None,
    layers: Sequence[nn.Module] = (),
    joules: Callable[[], float] = no_joules,
) -> Iterator[StepDone | Evaluated]:
    """Train the space's parameters with the optimizer of `update` on backpropagated gradients.

    Parameters are fp32, or in half precision where the update `trains_halves`: a step then rounds each to the nearest
    number, and loses an update below half the weight's spacing (2^-9 of the weight in bf16); see `LostUpdates`. Weight
    decay is decoupled and applies to parameters of two or more dimensions, as in the ZO updates.

    Args:
        autocast: dtype of the products of forward and backward (torch.autocast), over fp32 parameters, gradients and
            states: mixed precision (Micikevicius et al., 2018), as in P-RGE's system figures. The loss is scaled by
            torch.amp.GradScaler, with its defaults; a step whose gradients are not all finite moves nothing and is
            `skipped`, and the rates go on by its number. Evaluations are in fp32.
        layers: all of the model's: gradients are of one layer at a time (see `Layerwise`), whose parameters move before
            those of the layer below it have gradients. Not with `autocast`, which skips a step whole.
        joules: as in `engine.train`.

    P-RGE's Table 8 names Adam, batch 8, 1,000 iterations; its system figures and the released code use SGD. Cost: a
    forward and a backward per step; memory: a gradient and the update's state per trainable value, and with `autocast`
    a copy of every multiplied weight until the backward pass is over. Raises DivergedError before the update.
    """
    due = set(evaluation_points(steps, eval_every))
    with trained(space):
        one = GradientSteps(
            model, space, loss, update, steps=steps, seed=seed, autocast=autocast, layers=layers, joules=joules
        )
        for number in range(1, steps + 1):
            yield one.take(number, partial(batches, number))
            if number in due:
                yield evaluated_at(number, evaluate_dev, seed)


@contextmanager
def trained(space: InstalledSpace) -> Iterator[None]:
    """Let backward passes reach a space's parameters within the block."""
    for param in space.params.values():
        param.requires_grad_(True)
    try:
        yield
    finally:
        for param in space.params.values():
            param.requires_grad_(False)


class GradientSteps:
    """The steps of a run, or of a part of it that begins without an optimizer's state; arguments as in `train`."""

    def __init__(
        self,
        model: LanguageModel,
        space: InstalledSpace,
        loss: Loss,
        update: Update,
        *,
        steps: int,
        seed: int,
        autocast: torch.dtype | None = None,
        layers: Sequence[nn.Module] = (),
        joules: Callable[[], float] = no_joules,
    ) -> None:
        self._model, self._loss, self._rates, self._seed = model, loss, update.rates(steps), seed
        self._autocast, self._joules, self._layers = autocast, joules, layers
        self._device = next(iter(space.params.values())).device.type
        self._scaler = torch.amp.GradScaler(self._device, enabled=autocast is not None)
        self._passes = Layerwise(model, layers)
        self._owned = self._passes.owned(space.params) if layers else [space.params]
        decay = getattr(update, "weight_decay", 0.0)
        self._steppers = [update.optimizer(_groups(own, decay)) for own in self._owned]

    def take(self, number: int, draw: Callable[[], Batch]) -> StepDone:
        """Move the parameters by the gradients of a minibatch. Raises DivergedError before, for a loss not finite."""
        spent, began = self._joules(), time.perf_counter()
        batch = draw()
        with torch.autocast(self._device, self._autocast, enabled=self._autocast is not None):
            logprobs = self._passes.token_logprobs(batch) if self._layers else token_logprobs(self._model, batch)
            value = self._loss(logprobs, batch)[0]
        if not math.isfinite(f := value.item()):
            raise DivergedError(f"non-finite loss at step {number}, seed {self._seed}: {f}")
        with counted_as(Part.LOGITS):  # until the gradient reaches the head's input: see `token_logprobs`
            self._scaler.scale(value).backward()
        del value, logprobs  # whose graph has hidden states
        lost, lr = LostUpdates() if LostUpdates.is_measured(number) else None, self._rates(number)
        for i, stepper in reversed([*enumerate(self._steppers)]):
            if self._layers:
                self._passes.backward(self._layers[i])
            for group in stepper.param_groups:
                group["lr"] = lr
            with lost.around(self._owned[i]) if lost is not None else nullcontext():
                self._scaler.step(stepper)
            stepper.zero_grad(set_to_none=True)
        scale = self._scaler.get_scale()
        self._scaler.update()
        skipped = self._scaler.get_scale() < scale
        share = math.nan if lost is None else lost.share(lr != 0)
        seconds, spent = time.perf_counter() - began, self._joules() - spent
        return StepDone(number, f, (), seconds, batch.input_ids.numel(), share, spent, skipped)


def _groups(params: Params, weight_decay: float) -> list[dict[str, object]]:
    decayed = [param for param in params.values() if param.dim() >= 2]
    others = [param for param in params.values() if param.dim() < 2]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


@contextmanager
def checkpointed(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Keep only the inputs of each layer for the backward pass inside the block; forwards without gradients as before.

    The gradients are the same to the bit where the layers' kernels are deterministic. The layers must draw no random
    numbers (dropout is off) and keep no state from one forward to the next (no cache of keys and values).

    Cost: one more forward of the layers per backward; memory: one layer's activations, and an input [N, T, D] per
    layer. Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
    """
    with replaced(layers, lambda _, forward: partial(_again, forward)):
        yield


def _again(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


class _Call(NamedTuple):
    """One call of a layer, for a part of the texts."""

    compute: Callable[[Tensor], Any]  # x -> the layer's output
    x: Tensor
    y: Tensor  # the output's hidden states, a leaf; y.grad will be df/dy


class Layerwise:
    """Exact gradients at about the memory of a forward. Only the layers have trained parameters.

        forward   the inputs x_0, ..., x_{L-1} of the layers are kept, and no layer's graph
        backward  for l = L-1, ..., 0: layer l once more from x_l, with its graph; df/dx_l, and its own gradients

    Layers, for texts, and the head, for logits, are computed a part after the other (`methods.kind.part_of`). The
    caller moves a layer's parameters, and frees their gradients, before the layer below it is computed again.

    Args:
        layers: all of them, in order. They draw no random numbers, and keep no state between forwards.

    Cost: one more forward per backward; a weight that is stored as codes is decoded up to three times for each part.
    Memory: an input [N, T, D] of each layer, and one layer's activations for a part of the texts. Source: MeBP
    (arXiv:2510.03425) and MeSP (arXiv:2602.13069); here autograd runs within a layer.
    """

    def __init__(self, model: LanguageModel, layers: Sequence[nn.Module]) -> None:
        self._model, self._layers = model, layers
        self._calls: defaultdict[nn.Module, list[_Call]] = defaultdict(list)

    def owned(self, params: Params) -> list[Params]:
        """Return the parameters of each layer; one that several have belongs to the first, whose turn is the last."""
        owner: dict[Tensor, int] = {}
        for number, layer in enumerate(self._layers):
            for param in layer.parameters():
                owner.setdefault(param, number)
        return [{k: v for k, v in params.items() if owner[v] == number} for number in range(len(self._layers))]

    def token_logprobs(self, batch: Batch) -> Tensor:
        """Return log p(answer token | prefix), [1, K], as `losses.token_logprobs`; its graph ends at the layers."""
        ids, mask, positions = batch.input_ids, batch.attention_mask, batch.positions
        found, order = [], []
        with counted_as(Part.ACTIVATIONS), replaced(self._layers, self._keeping):
            for part in _parts(batch):
                hidden = self._model.hidden(ids[part], mask[part], None if positions is None else positions[part])
                rows, columns = part
                inside = (rows.start <= batch.place_row) & (batch.place_row < rows.stop)
                inside &= (columns.start <= batch.place_column) & (batch.place_column < columns.stop)
                own = inside.nonzero().flatten()
                found.append(hidden[batch.place_row[own] - rows.start, batch.place_column[own] - columns.start])
                order.append(own)
            places = torch.cat(found)[torch.cat(order).argsort()]  # [U, D]
        places.register_hook(lambda _: continue_as(Part.ACTIVATIONS))
        again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        size = part_of(len(places))
        by_place, logprobs = batch.token_place.argsort(stable=True), []
        for number, some in enumerate(places.unsqueeze(0).split(size, dim=1)):
            own = by_place[batch.token_place[by_place] // size == number]
            tokens = (batch.token_place[own] - number * size, batch.token_id[own])
            logprobs.append(again(logprobs_at, self._model, some, *tokens))
        return torch.cat(logprobs, dim=1)[:, by_place.argsort()]

    def backward(self, layer: nn.Module) -> None:
        """Add the gradients of a layer's parameters to their `grad`; those of all later layers come before.

        Before the last layer's, the gradient of the loss of `token_logprobs` is taken back to its output.
        """
        calls = [(call.compute, call.x, call.y.grad) for call in self._calls.pop(layer)]  # without y
        with counted_as(Part.ACTIVATIONS):
            while calls:
                compute, before, gradient = calls.pop()
                x = before.detach().requires_grad_(before.requires_grad)
                torch.autograd.backward(_states(compute(x)), gradient)
                if before.requires_grad:
                    before.backward(x.grad)  # to the y of the layer before

    def _keeping(self, layer: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def keeps(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            others = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
            assert not any(value.requires_grad for value in others), "a layer reads more of the layers before it than x"
            with torch.no_grad():
                output = forward(x, *args, **kwargs)
            y = _states(output).requires_grad_()
            self._calls[layer].append(_Call(lambda x: forward(x, *args, **kwargs), x, y))
            return output

        return keeps


def _parts(batch: Batch) -> Iterator[tuple[slice, slice]]:
    """Yield the (rows, columns) of a batch's parts: whole rows, or whole texts of a row that several share."""
    rows, length = batch.input_ids.shape
    if batch.positions is None:
        size = part_of(rows)
        yield from ((slice(row, min(row + size, rows)), slice(0, length)) for row in range(0, rows, size))
        return
    begins = (batch.positions == 0) & (batch.attention_mask == 1)
    for row, texts in enumerate(begins.tolist()):
        start = stop = 0
        for end in [*(column for column in range(1, length) if texts[column]), length]:
            if end - start > part_of(rows * length) and stop > start:
                yield slice(row, row + 1), slice(start, stop)
                start = stop
            stop = end
        yield slice(row, row + 1), slice(start, length)


def _states(output: Any) -> Tensor:
    """Return the hidden states among a layer's outputs: those alone, or the first of several."""
    return output if isinstance(output, Tensor) else output[0]
