"""First-order baselines: backpropagation through the same space, batches and loss; and gradient checkpointing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from zo_sweeps.core.memory_parts import Part, counted_as
from zo_sweeps.engine.batch import Batch
from zo_sweeps.engine.layerwise import Layerwise, replaced
from zo_sweeps.engine.losses import Loss, token_logprobs
from zo_sweeps.engine.rounding import LostUpdates
from zo_sweeps.engine.train import Evaluated, Scores, StepDone, evaluated_at, evaluation_points, no_joules
from zo_sweeps.engine.types import DivergedError, LanguageModel
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

    With `autocast`, training is in mixed precision (Micikevicius et al., 2018), as in P-RGE's system figures: the
    products of forward and backward are in this dtype (torch.autocast), over fp32 parameters, gradients and states. The
    loss is multiplied by a scale before the backward pass, and the gradients are divided by it: 2^16 at first, halved
    at a step whose gradients are not all finite, doubled after 2,000 steps without one (torch.amp.GradScaler, with the
    defaults of torch and of transformers' Trainer). Such a step moves nothing and is `skipped`; the rates go on by its
    number. Evaluations are in fp32.

    With `layers`, all of the model's, the gradients are those of one layer at a time (see `engine.layerwise`), and its
    parameters move before those of the layer below it have gradients. Not with `autocast`, which skips a step whole.

    `joules` is read as in `engine.train`.

    P-RGE's Table 8 names Adam, batch 8, 1,000 iterations; its system figures and the released code use SGD. Cost:
    a forward and a backward per step; memory: a gradient, and the update's state, per trainable value, and
    with `autocast` a copy of every multiplied weight until the backward pass is over. Raises DivergedError as
    `engine.train` does: before the update, at the first non-finite loss.
    """
    due = set(evaluation_points(steps, eval_every))
    params = list(space.params.values())
    for param in params:
        param.requires_grad_(True)
    rates = update.rates(steps)
    device = params[0].device.type
    scaler = torch.amp.GradScaler(device, enabled=autocast is not None)
    passes = Layerwise(model, layers)
    owned = passes.owned(space.params) if layers else [space.params]
    steppers = [update.optimizer(_groups(own, getattr(update, "weight_decay", 0.0))) for own in owned]
    for number in range(1, steps + 1):
        spent, began = joules(), time.perf_counter()
        batch = batches(number)
        with torch.autocast(device, autocast, enabled=autocast is not None):
            logprobs = passes.token_logprobs(batch) if layers else token_logprobs(model, batch)
            value = loss(logprobs, batch)[0]
        if not math.isfinite(f := value.item()):
            raise DivergedError(f"non-finite loss at step {number}, seed {seed}: {f}")
        with counted_as(Part.LOGITS):  # until the gradient reaches the head's input: see `token_logprobs`
            scaler.scale(value).backward()
        del value, logprobs  # whose graph has hidden states
        lost = LostUpdates() if LostUpdates.is_measured(number) else None
        for i, stepper in reversed([*enumerate(steppers)]):
            if layers:
                passes.backward(layers[i])
            for group in stepper.param_groups:
                group["lr"] = rates(number)
            with lost.around(owned[i]) if lost is not None else nullcontext():
                scaler.step(stepper)
            stepper.zero_grad(set_to_none=True)
        scale = scaler.get_scale()
        scaler.update()
        skipped = scaler.get_scale() < scale
        share = math.nan if lost is None else lost.share(rates(number) != 0)
        seconds, spent = time.perf_counter() - began, joules() - spent
        yield StepDone(number, f, (), seconds, batch.input_ids.numel(), share, spent, skipped)
        if number in due:
            yield evaluated_at(number, evaluate_dev, seed)
    for param in params:
        param.requires_grad_(False)


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
