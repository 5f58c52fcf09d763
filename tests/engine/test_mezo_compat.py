"""The compatibility mode against MeZO's algorithm written out as its released code runs it: bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from tests.engine.conftest import TinyModel, make_examples, tiny_model
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import Batch, collate, indices
from zo_sweeps.engine.estimators.mezo_compat import MezoCompat as Estimator
from zo_sweeps.engine.evaluate import InPlace
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.engine.perturbations.mezo_compat import MezoCompat as Stream
from zo_sweeps.engine.replay import replay
from zo_sweeps.engine.schedules.linear import Linear
from zo_sweeps.engine.step import Method
from zo_sweeps.engine.train import Scores, StepDone, train
from zo_sweeps.engine.updates.mezo_compat import MezoCompat as Update
from zo_sweeps.methods.points import Layout, NoiseKey
from zo_sweeps.methods.space import FullModel

pytestmark = pytest.mark.unit
STEPS, EPS, LR, SEED = 20, 1e-3, 1e-3, 42
SCHEDULE = Linear().over(LR, STEPS)


def mezo(module: nn.Module, f: Callable[[int], torch.Tensor], decay: float = 0.0) -> list[tuple[float, float, float]]:
    """MeZO, Algorithm 1, with four passes over the parameters a step. Returns (loss1, loss2, projected_grad) a step."""
    named = list(module.named_parameters())
    np.random.seed(SEED)
    log = []

    def perturb(seed: int, scaling: int) -> None:
        torch.manual_seed(seed)
        for _, param in named:
            z = torch.normal(mean=0, std=1, size=param.data.size(), dtype=param.data.dtype)
            param.data = param.data + scaling * z * EPS

    for step in range(1, STEPS + 1):
        seed = np.random.randint(1000000000)
        perturb(seed, 1)
        loss1 = f(step)
        perturb(seed, -2)
        loss2 = f(step)
        projected_grad = ((loss1 - loss2) / (2 * EPS)).item()
        perturb(seed, 1)
        torch.manual_seed(seed)
        for name, param in named:
            z = torch.normal(mean=0, std=1, size=param.data.size(), dtype=param.data.dtype)
            if any(part in name for part in ("bias", "layer_norm", "layernorm")):
                param.data = param.data - SCHEDULE(step) * (projected_grad * z)
            else:
                param.data = param.data - SCHEDULE(step) * (projected_grad * z + decay * param.data)
        log.append((loss1.item(), loss2.item(), projected_grad))
    return log


def batch_of(step: int) -> Batch:
    examples = make_examples(24)
    return collate([examples[i] for i in indices(0, step, len(examples), 8)], pad_id=0)


def method(decay: float = 0.0) -> Method:
    return Method(Estimator(1, EPS), Stream(), Update(decay), in_place=InPlace())


def run(model: TinyModel, how: Method, log: list[tuple[float, ...]] = ()) -> list[StepDone]:
    events = train(
        how, model, FullModel(model.module), batch_of, losses.candidates, SCHEDULE, lambda: Scores(0.0, 0.0, {}),
        seed=SEED, steps=STEPS, eval_every=STEPS, log=log,
    )  # fmt: skip
    return [event for event in events if isinstance(event, StepDone)]


def digest(model: TinyModel) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.module.parameters())).hexdigest()


@pytest.mark.parametrize(
    ("tied", "decay", "dtype"),
    [
        *((tied, decay, torch.float32) for tied in (True, False) for decay in (0.0, 0.1)),
        (False, 0.1, torch.bfloat16),
        (False, 0.1, torch.float16),
    ],
)
def test_twenty_steps_have_the_bits_of_mezos_code(tied: bool, decay: float, dtype: torch.dtype) -> None:
    theirs, ours = tiny_model(tied=tied), tiny_model(tied=tied)
    theirs.module.to(dtype)
    ours.module.to(dtype)
    state = torch.get_rng_state(), np.random.get_state()

    def f(step: int) -> torch.Tensor:
        batch = batch_of(step)
        with torch.inference_mode():
            return losses.candidates(token_logprobs(theirs, batch), batch)[0]

    expected = mezo(theirs.module, f, decay)
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])
    done = run(ours, method(decay))
    assert [event.coefs[0] for event in done] == [g for _, _, g in expected]
    assert [event.loss for event in done] == [(one + two) / 2 for one, two, _ in expected]
    assert all(torch.equal(p, q) for p, q in zip(theirs.module.parameters(), ours.module.parameters(), strict=True))
    assert not torch.equal(ours.module.lm_head.weight, tiny_model(tied=tied).module.lm_head.weight.to(dtype))
    assert torch.equal(torch.get_rng_state(), state[0])  # the global generator is left alone


def test_replay_and_resume_have_the_bits_of_the_run_drift_included() -> None:
    whole, again, resumed = tiny_model(), tiny_model(), tiny_model()
    first = method()
    done = run(whole, first)
    log = [event.coefs for event in done]
    second = method()
    replay(second, FullModel(again.module).params, log, SCHEDULE, seed=SEED)
    assert digest(again) == digest(whole)
    assert second.in_place.drift == first.in_place.drift > 0
    assert [event.coefs for event in run(resumed, method(), log[:7])] == log[7:]
    assert digest(resumed) == digest(whole)


def test_seeds_are_successive_draws_of_numpys_generator() -> None:
    layout = Layout({"theta": torch.Size([4])}, 1)
    stream = Stream().bind(layout)
    draws = np.random.RandomState(7)
    for step in [1, 2, 3, 5000]:
        number = draws.randint(1000000000) if step < 5000 else np.random.RandomState(7).randint(10**9, size=5000)[-1]
        expected = torch.normal(0.0, 1.0, (4,), generator=torch.Generator().manual_seed(int(number)))
        assert torch.equal(stream.sample(NoiseKey(7, step, 0), "theta", torch.Size([4]), torch.device("cpu")), expected)


def test_a_parameters_noise_does_not_depend_on_the_order_of_asking() -> None:
    shapes = {"a": torch.Size([3]), "b": torch.Size([5, 7]), "c": torch.Size([2])}
    key, cpu = NoiseKey(1, 2, 0), torch.device("cpu")
    ordered, mixed = Stream().bind(Layout(shapes, 1)), Stream().bind(Layout(shapes, 1))
    expected = {name: ordered.sample(key, name, shape, cpu) for name, shape in shapes.items()}
    for name in ["c", "a", "a", "c", "b", "c"]:
        assert torch.equal(mixed.sample(key, name, shapes[name], cpu), expected[name])
