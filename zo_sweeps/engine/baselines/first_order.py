"""FO rows: backpropagation through the same space, batches and loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import torch

from zo_sweeps.engine.batch import Batch
from zo_sweeps.engine.losses import Loss, token_logprobs
from zo_sweeps.engine.schedules import Schedule
from zo_sweeps.engine.train import Evaluated, Scores, StepDone, evaluation_points
from zo_sweeps.engine.types import DivergedError, LanguageModel, Space


def train(
    model: LanguageModel,
    space: Space,
    batches: Callable[[int], Batch],
    loss: Loss,
    schedule: Schedule,
    evaluate_dev: Callable[[], Scores],
    *,
    steps: int,
    eval_every: int,
) -> Iterator[StepDone | Evaluated]:
    """Adam (betas 0.9 and 0.999, no weight decay) on the space's parameters, which must be fp32.

    P-RGE Table 8 names Adam, batch 8, 1,000 iterations. Cost: forward and backward a step; gradients and two moments
    for each trainable value. Raises DivergedError as `engine.train` does.
    """
    due = set(evaluation_points(steps, eval_every))
    params = list(space.params.values())
    for param in params:
        param.requires_grad_(True)
    optimizer = torch.optim.Adam(params)
    for number in range(1, steps + 1):
        began = time.perf_counter()
        batch = batches(number)
        value = loss(token_logprobs(model, batch), batch)[0]
        if not math.isfinite(value.item()):
            raise DivergedError(f"non-finite loss at step {number}: {value.item()}")
        value.backward()
        for group in optimizer.param_groups:
            group["lr"] = schedule(number)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield StepDone(number, value.item(), (), time.perf_counter() - began, batch.input_ids.numel())
        if number in due:
            began = time.perf_counter()
            dev_loss, metric = evaluate_dev()
            yield Evaluated(number, dev_loss, metric, time.perf_counter() - began)
    for param in params:
        param.requires_grad_(False)
