"""Rounds of first-order training over clients that keep their rows and exchange weights: the reference of scalars."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from zo_sweeps.engine.batch import Batch
from zo_sweeps.engine.first_order import GradientSteps, trained
from zo_sweeps.engine.train import Evaluated, Scores, StepDone, evaluated_at, evaluation_points
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps_federated.client_rounds import OfClients


def train_averaged(
    protocol: OfClients,
    space: InstalledSpace,
    begin: Callable[[], GradientSteps],
    batches: Callable[[int, int], Batch],
    evaluate_dev: Callable[[], Scores],
    *,
    steps: int,
    eval_every: int,
    seed: int,
) -> Iterator[StepDone | Evaluated]:
    """Train in rounds of K local steps by backpropagation, whose ends are averaged.

        theta <- 1/M sum_c theta_c,   theta_c = theta after K steps on minibatches of client c,   M clients present

    A step of the run is the k-th local step of a round, of all clients: its loss is their mean, its seconds, tokens and
    joules their sum. They come with the round's end, as theta does: evaluations are there.

    Args:
        begin: makes the steps of a client, with an optimizer that has no state.
        batches: client, step of the run -> its minibatch.
        eval_every: a multiple of K.

    Cost: M forwards and backwards per step. Memory: two copies of the parameters. Raises DivergedError as
    `GradientSteps` does. Source: McMahan et al., Communication-efficient learning of deep networks from decentralized
    data (FedAvg), 2017, whose mean is weighted by the clients' rows.
    """
    due = set(evaluation_points(steps, eval_every))
    params = list(space.params.values())
    for first in range(1, steps + 1, protocol.local_steps):
        members, numbers = protocol.members(seed, first), protocol.round_of(first, steps)
        start = [param.detach().clone() for param in params]
        sums = [torch.zeros_like(param, dtype=torch.float32) for param in params]  # rounded once, to the mean
        taken: list[list[StepDone]] = []
        for client in members:
            with torch.no_grad():
                for param, value in zip(params, start, strict=True):
                    param.copy_(value)
            with trained(space):
                local = begin()
                taken.append([local.take(number, partial(batches, client, number)) for number in numbers])
            for total, param in zip(sums, params, strict=True):
                total += param.detach()
        with torch.no_grad():
            for param, total in zip(params, sums, strict=True):
                param.copy_(total / len(members))
        yield from (_together(of_step) for of_step in zip(*taken, strict=True))
        if numbers[-1] in due:
            yield evaluated_at(numbers[-1], evaluate_dev, seed)


def _together(of_step: Sequence[StepDone]) -> StepDone:
    """Return the step that clients have taken, each its own."""
    loss = math.fsum(one.loss for one in of_step) / len(of_step)
    seconds, tokens = sum(one.seconds for one in of_step), sum(one.tokens for one in of_step)
    joules, lost = sum(one.joules for one in of_step), math.fsum(one.lost for one in of_step) / len(of_step)
    return StepDone(of_step[0].step, loss, (), seconds, tokens, lost, joules)
