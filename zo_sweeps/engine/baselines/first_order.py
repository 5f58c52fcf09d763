"""First-order baselines: backpropagation through the same space, batches and loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext

from zo_sweeps.core.memory import Part, counted_as
from zo_sweeps.engine.batch import Batch
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
    joules: Callable[[], float] = no_joules,
) -> Iterator[StepDone | Evaluated]:
    """Train the space's parameters with the optimizer of `update` on backpropagated gradients.

    Parameters are fp32, or in half precision where the update `trains_halves`: a step then rounds each to the nearest
    number, and loses an update below half the weight's spacing (2^-9 of the weight in bf16); see `LostUpdates`. Weight
    decay is decoupled and applies to parameters of two or more dimensions, as in the ZO updates.

    `joules` is read as in `engine.train`.

    P-RGE's Table 8 names Adam, batch 8, 1,000 iterations; its system figures and the released code use SGD. Cost:
    a forward and a backward per step; memory: a gradient, and the update's state, per trainable value. Raises
    DivergedError as `engine.train` does: before the update, at the first non-finite loss.
    """
    due = set(evaluation_points(steps, eval_every))
    params = list(space.params.values())
    for param in params:
        param.requires_grad_(True)
    rates = update.rates(steps)
    stepper = update.optimizer(_groups(space.params, getattr(update, "weight_decay", 0.0)))
    for number in range(1, steps + 1):
        spent, began = joules(), time.perf_counter()
        batch = batches(number)
        value = loss(token_logprobs(model, batch), batch)[0]
        if not math.isfinite(value.item()):
            raise DivergedError(f"non-finite loss at step {number}, seed {seed}: {value.item()}")
        with counted_as(Part.LOGITS):  # until the gradient reaches the head's input: see `token_logprobs`
            value.backward()
        for group in stepper.param_groups:
            group["lr"] = rates(number)
        lost = LostUpdates() if LostUpdates.is_measured(number) else None
        with lost.around(space.params) if lost is not None else nullcontext():
            stepper.step()
        stepper.zero_grad(set_to_none=True)
        share = math.nan if lost is None else lost.share(rates(number) != 0)
        seconds, spent = time.perf_counter() - began, joules() - spent
        yield StepDone(number, value.item(), (), seconds, batch.input_ids.numel(), share, spent)
        if number in due:
            yield evaluated_at(number, evaluate_dev, seed)
    for param in params:
        param.requires_grad_(False)


def _groups(params: Params, weight_decay: float) -> list[dict[str, object]]:
    decayed = [param for param in params.values() if param.dim() >= 2]
    others = [param for param in params.values() if param.dim() < 2]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
