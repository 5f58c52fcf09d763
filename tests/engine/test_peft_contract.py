"""What every space keeps to: all of them, by listing the package."""

from __future__ import annotations

import pytest
import torch

from tests.engine import contract
from tests.engine.conftest import make_examples, tiny_model
from tests.engine.spaces_common import MEMBERS, digest, install, logits, nudge
from zo_sweeps.engine import first_order, losses
from zo_sweeps.engine.batch import collate, indices
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.replay import rebuild
from zo_sweeps.engine.schedules.constant import Constant
from zo_sweeps.engine.step import Method
from zo_sweeps.engine.train import Scores, StepDone, train
from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.evaluation import Mode

pytestmark = pytest.mark.unit
ADDED = [
    name for name in MEMBERS if not contract.kind("space", name).moves_base
]  # those that leave the base model as it was
REFRESHED = [(name, 4) for name in MEMBERS if contract.known("space", name, {"refresh": 4})]
RATES = {"full": 1e-3, "prefix": 1e-1, "sensitive": 1e-2, "random_subset": 1e-2, "outliers": 1e-2}


def objective_of(model, n: int = 3):
    batch = collate(make_examples(n), pad_id=0)
    return lambda P: losses.candidates(token_logprobs(model, batch, P), batch)


@pytest.mark.parametrize("q", [1, 16])
@pytest.mark.parametrize("name", ADDED)
def test_batched_points_have_the_losses_of_sequential_ones(name: str, q: int) -> None:
    model = tiny_model()
    space = install(name, model)
    assert space.batched
    nudge(space)
    points = RGE(q, 1e-1).points(0, 1)
    found = {
        mode: torch.tensor(evaluate(objective_of(model), model.module, space, Gaussian(), points, mode))
        for mode in (Mode.SEQUENTIAL, Mode.OUTER, Mode.INNER, Mode.BOTH)
    }
    assert found[Mode.SEQUENTIAL].std() > 1e-3  # the points do differ
    for mode in (Mode.OUTER, Mode.INNER, Mode.BOTH):
        torch.testing.assert_close(found[mode], found[Mode.SEQUENTIAL], rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_a_point_is_theta_with_its_direction_added(name: str) -> None:
    model = tiny_model()
    space = install(name, model)
    nudge(space, 0.01)
    points = RGE(2, 1e-1).points(0, 1)
    found = evaluate(objective_of(model), model.module, space, Gaussian(), points, Mode.SEQUENTIAL)
    for point, value in zip(points, found, strict=True):
        base = {n: p.detach().clone() for n, p in space.params.items()}
        with torch.no_grad():
            for n, p in space.params.items():
                p += point.scale * Gaussian().sample(point.key, n, p.shape, p.device)
            plain = objective_of(model)(1).item()
            for n, p in space.params.items():
                p.copy_(base[n])
        assert value == pytest.approx(plain, rel=3e-6)


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_evaluation_does_not_write_theta(name: str) -> None:
    model = tiny_model()
    space = install(name, model)
    before, out = digest(space.params.values()), logits(model)
    mode = Mode.BOTH if space.batched else Mode.SEQUENTIAL
    evaluate(objective_of(model), model.module, space, Gaussian(), RGE(2).points(0, 1), mode)
    assert digest(space.params.values()) == before
    assert torch.equal(logits(model), out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ADDED)
def test_uninstalling_restores_the_base_model_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    model = tiny_model()
    model.module.to(dtype)
    keys, before, out = list(model.module.state_dict()), digest(model.module.parameters()), logits(model)
    space = install(name, model)
    nudge(space)
    assert not torch.equal(logits(model), out)
    assert {p.dtype for p in space.params.values()} == {torch.float32}
    mode = Mode.BOTH if space.batched else Mode.SEQUENTIAL
    values = evaluate(objective_of(model), model.module, space, Gaussian(), RGE(2).points(0, 1), mode)
    assert all(value == value for value in values)
    space.uninstall()
    assert list(model.module.state_dict()) == keys
    assert digest(model.module.parameters()) == before
    assert torch.equal(logits(model), out)


@pytest.mark.parametrize("name", sorted(set(ADDED) - {"prefix"}))
def test_a_new_space_changes_nothing(name: str) -> None:
    model = tiny_model()
    before = logits(model)
    install(name, model)
    torch.testing.assert_close(logits(model), before, rtol=2e-5, atol=2e-5)


def run(name: str, steps: int, log=(), mode: Mode = Mode.SEQUENTIAL, **changed):
    model = tiny_model()
    space = install(name, model, seed=1, **changed)
    examples = make_examples(10)
    events = train(
        Method(RGE(2, 1e-2), Gaussian(), SGD(), mode),
        model,
        space,
        lambda number: collate([examples[i] for i in indices(1, number, 10, 4)], 0),
        losses.candidates,
        Constant().over(RATES.get(name, 1e-1), steps),
        lambda: Scores(0.5, 0.5, {}),
        seed=1,
        steps=steps,
        eval_every=steps,
        log=log,
    )
    return space, model, [event.coefs for event in events if isinstance(event, StepDone)]


@pytest.mark.parametrize(("name", "refresh"), [*((name, 0) for name in sorted(MEMBERS)), *REFRESHED])
def test_replay_and_resume_have_the_bits_of_the_run(name: str, refresh: int) -> None:
    space, _, log = run(name, 10, refresh=refresh)
    again = install(name, tiny_model(), seed=1, refresh=refresh)
    start = digest(again.params.values())
    rebuild(Method(RGE(2, 1e-2), Gaussian(), SGD()), again, log, Constant().over(RATES.get(name, 1e-1), 10), seed=1)
    assert digest(again.params.values()) == digest(space.params.values()) != start
    for cut in (3, 4, 9):
        resumed, _, rest = run(name, 10, log[:cut], refresh=refresh)
        assert digest(resumed.params.values()) == digest(space.params.values())
        assert rest == log[cut:]


@pytest.mark.parametrize("name", ADDED)
def test_all_modes_train_to_the_same_weights_within_rounding(name: str) -> None:
    reference, _, _ = run(name, 5)
    for mode in (Mode.OUTER, Mode.BOTH):
        space, _, _ = run(name, 5, mode=mode)
        for key, param in space.params.items():
            torch.testing.assert_close(param, reference.params[key], rtol=0, atol=3e-4)


@pytest.mark.parametrize("name", ADDED)
def test_backpropagation_reaches_every_parameter_and_lowers_the_loss(name: str) -> None:
    model = tiny_model()
    space = install(name, model)
    nudge(space, 0.01)
    before = {n: p.detach().clone() for n, p in space.params.items()}
    batch = collate(make_examples(3), pad_id=0)
    events = first_order.train(
        model,
        space,
        lambda number: batch,
        losses.candidates,
        Adam(lr=1e-2),
        lambda: Scores(0.0, 0.0, {}),
        steps=6,
        eval_every=6,
        seed=0,
    )
    curve = [event.loss for event in events if isinstance(event, StepDone)]
    assert curve[-1] < curve[0]
    for key, param in space.params.items():
        assert not torch.equal(param, before[key]), key
        assert not param.requires_grad


# DoRA's norm is a constant to backpropagation, as in the paper, so its gradient is not the loss's own
@pytest.mark.parametrize("name", sorted(set(MEMBERS) - {"dora"}))
def test_the_directional_derivative_is_that_of_backpropagation(name: str) -> None:
    """Oracle for the way from parameters to the loss: (f(theta + eps z) - f(theta - eps z)) / 2 eps = <grad, z>."""
    model = tiny_model()
    space = install(name, model)
    nudge(space, 0.02)
    point = RGE(1, 1e-3).points(3, 1)
    plus, minus = evaluate(objective_of(model), model.module, space, Gaussian(), point, Mode.SEQUENTIAL)
    params = dict(space.params)
    for p in params.values():
        p.requires_grad_(True)
    objective_of(model)(1)[0].backward()
    expected = sum(
        float((p.grad * Gaussian().sample(point[0].key, n, p.shape, p.device)).sum()) for n, p in params.items()
    )
    assert (plus - minus) / 2e-3 == pytest.approx(expected, rel=0.01, abs=0.01)
