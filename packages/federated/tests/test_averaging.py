"""Averaged rounds: one client is the run of one process; several are their definition, in plain tensors."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from tests.engine.conftest import make_examples, tiny_model
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import Batch, collate, indices
from zo_sweeps.engine.first_order import GradientSteps, train
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.engine.replay import digest
from zo_sweeps.engine.schedules.linear import Linear
from zo_sweeps.engine.train import Evaluated, Scores, StepDone
from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.space import FullModel
from zo_sweeps.methods.update import Update
from zo_sweeps_federated.averaging import train_averaged
from zo_sweeps_federated.fedavg import FederatedAveraging

pytestmark = pytest.mark.unit
STEPS, SEED, LR = 6, 5, 0.05
EXAMPLES = make_examples(24)


def minibatch(protocol: FederatedAveraging, client: int, step: int) -> Batch:
    own = EXAMPLES[client :: protocol.clients]
    return collate([own[i] for i in indices(SEED, step, len(own), 3)], 0)


def averaged(
    protocol: FederatedAveraging, update: Update, dtype: torch.dtype = torch.float32
) -> tuple[Any, list[StepDone | Evaluated]]:
    model = tiny_model()
    model.module.to(dtype)
    space = FullModel(model.module)
    begin = partial(GradientSteps, model, space, losses.candidates, update, steps=STEPS, seed=SEED)
    events = train_averaged(
        protocol, space, begin, partial(minibatch, protocol), lambda: Scores(0.0, 0.0, {}), steps=STEPS,
        eval_every=protocol.local_steps, seed=SEED,
    )  # fmt: skip
    found = list(events)
    assert not any(param.requires_grad for param in space.params.values())
    return space, found


@pytest.mark.parametrize("update", [SGD(lr=LR, schedule=Linear()), Adam(lr=LR)])
def test_one_client_in_one_round_is_the_run_of_one_process_bit_for_bit(update: Update) -> None:
    protocol = FederatedAveraging(clients=1, present=1, local_steps=STEPS)
    space, found = averaged(protocol, update)
    model = tiny_model()
    alone = FullModel(model.module)
    batches, nothing = partial(minibatch, protocol, 0), lambda: Scores(0.0, 0.0, {})
    events = list(
        train(model, alone, batches, losses.candidates, update, nothing, steps=STEPS, eval_every=STEPS, seed=SEED)
    )
    seen = [[(one.step, one.loss, one.tokens) for one in of if isinstance(one, StepDone)] for of in (events, found)]
    assert seen[0] == seen[1]
    assert digest(alone.params) == digest(space.params)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_mean_of_equal_weights_is_those_weights_in_half_precision(dtype: torch.dtype) -> None:
    space, _ = averaged(FederatedAveraging(clients=5, present=5, local_steps=2), SGD(lr=0.0), dtype)
    assert digest(space.params) == digest(FullModel(tiny_model().module.to(dtype)).params)


@pytest.mark.parametrize("local_steps", [1, 3, 4])
@pytest.mark.parametrize(("update", "plain"), [(SGD, torch.optim.SGD), (Adam, torch.optim.Adam)])
def test_rounds_are_what_their_definition_says(
    update: type[Update], plain: type[torch.optim.Optimizer], local_steps: int
) -> None:
    """Against a model per client, with an optimizer of torch that begins anew in each round, and the models' mean."""
    protocol = FederatedAveraging(clients=4, present=2, local_steps=local_steps)
    space, found = averaged(protocol, update(lr=LR, schedule=Linear()))
    theta = tiny_model().module.state_dict()
    of_steps, ends = [], []
    for first in range(1, STEPS + 1, local_steps):
        numbers = range(first, min(first + local_steps, STEPS + 1))
        models = [tiny_model(), tiny_model()]
        seen = []
        for model, client in zip(models, protocol.members(SEED, first), strict=True):
            model.module.load_state_dict(theta)
            optimizer = plain(model.module.parameters(), lr=LR)
            model.module.requires_grad_(True)
            for step in numbers:
                optimizer.param_groups[0]["lr"] = LR * (1 - (step - 1) / STEPS)
                batch = minibatch(protocol, client, step)
                loss = losses.candidates(token_logprobs(model, batch), batch)[0]
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen.append(loss.item())
        one, other = (model.module.state_dict() for model in models)
        theta = {name: (one[name] + other[name]) / 2 for name in theta}
        of_steps += [(a + b) / 2 for a, b in zip(seen[: len(numbers)], seen[len(numbers) :], strict=True)]
        ends.append(numbers[-1])
    assert [one.loss for one in found if isinstance(one, StepDone)] == pytest.approx(of_steps, rel=1e-5)
    assert [one.step for one in found if isinstance(one, Evaluated)] == ends
    for name, value in space.params.items():
        torch.testing.assert_close(value.detach(), theta[name], rtol=1e-5, atol=1e-6)
