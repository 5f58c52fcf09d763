"""Every update: the contract, its formula against an independent plain implementation, replay and resume."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import REPO
from tests.engine import contract
from tests.engine.conftest import TinyModel, make_examples, targets, tiny_model
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import Batch, collate, indices
from zo_sweeps.engine.direction import ghat
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.evaluate import InPlace
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.replay import replay
from zo_sweeps.engine.schedules.constant import Constant
from zo_sweeps.engine.schedules.linear import Linear
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.step import Method, RunState, step
from zo_sweeps.engine.train import Scores, StepDone, train
from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import Estimate, NoiseKey
from zo_sweeps.methods.space import FullModel
from zo_sweeps.methods.update import Update

pytestmark = pytest.mark.unit
NAMES = contract.REAL_UPDATES
RATES = (5e-3, 2e-2, 1e-2, 1e-3)  # learning rates at one of which every update converges on a quadratic


def member(name: str, **options: Any) -> Update:
    return contract.member("update", name, **options)


class Vector(nn.Module):
    """f(theta) of a matrix and a vector, in double precision inside."""

    def __init__(self, f: Callable[[Tensor], Tensor], d: int = 20, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(2, d // 2, dtype=dtype))
        self.vector = nn.Parameter(torch.ones(d, dtype=dtype))
        self.f = f

    def forward(self) -> Tensor:
        return self.f(torch.cat([self.matrix.flatten(), self.vector]).double()).reshape(1)


def quadratic(theta: Tensor) -> Tensor:
    return theta.square().sum()


def estimate_at(number: int, g: float = 0.7) -> Estimate:
    keys = [NoiseKey(3, number, 0), NoiseKey(3, number, 1)]
    return Estimate(((keys[0], g), (keys[1], -g / 2)), (2 * g, -g), 0.0)


def plain_ghat(estimate: Estimate, name: str, param: Tensor) -> np.ndarray:
    draw = lambda key: Gaussian().sample(key, name, param.shape, param.device).numpy().astype(np.float64)
    return sum(weight * draw(key) for key, weight in estimate.terms)


# The contract, of every member there is


@pytest.mark.parametrize("name", NAMES)
def test_every_update_converges_on_a_quadratic(name: str) -> None:
    assert any(converges(member(name), lr) for lr in RATES)


def converges(update: Update, lr: float) -> bool:
    module = Vector(quadratic, d=6)
    space, method, seen = FullModel(module), Method(RGE(4, 1e-3), Gaussian(), update), []
    state = method.init(space.params)
    for number in range(1, 301):
        estimate, state = step(method, module, space, lambda P: module(), state, seed=0, step=number, lr=lr)
        seen.append(estimate.loss)
    return seen[-1] < 2e-2 * seen[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_update_keeps_its_state_in_the_open(name: str) -> None:
    """The same state and estimate give the same move, whatever the object did before; and the object never changes."""
    module, update = Vector(quadratic), member(name)
    params, before = dict(module.named_parameters()), copy.deepcopy(vars(update))
    state = update.init(params)
    for number in (1, 2):
        state = update.apply(params, estimate_at(number), Gaussian(), state, 1e-2)
    theta, kept = copy.deepcopy(dict(params)), copy.deepcopy(state)
    update.apply(params, estimate_at(3), Gaussian(), state, 1e-2)
    fresh = member(name)
    fresh.apply(theta, estimate_at(3), Gaussian(), kept, 1e-2)
    assert all(torch.equal(params[n], theta[n]) for n in params)
    assert vars(update) == before == vars(fresh)


@pytest.mark.parametrize(
    "file",
    sorted(
        path for folder in ("zo_sweeps/engine", "packages/league/*") for path in REPO.glob(f"{folder}/[up]*s/[a-z]*.py")
    ),
    ids=lambda file: file.stem,
)
def test_no_member_but_adam_has_an_operation_that_rounds_in_another_way_on_a_gpu(file: Path) -> None:
    if file.stem == "adam":  # its trials' ids stand for its bits, and backpropagation's rows have it
        return
    assert not re.findall(r"\b(?:addcmul|addcdiv|lerp|rsqrt)_?\(", file.read_text(encoding="utf-8"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", ["adamezo", "helene", "meazo", "momentum", "r_adazo", "sgd"])
def test_a_gpu_moves_to_the_same_bits(name: str) -> None:
    moved = []
    for device in ("cpu", "cuda"):
        params, update = {"w": torch.linspace(-1, 1, 70_001).to(device)}, member(name)
        state = update.init(params)
        for number in range(1, 13):
            state = update.apply(params, estimate_at(number), Gaussian(), state, 1e-2)
        moved.append(params["w"].cpu())
    assert torch.equal(*moved)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_every_update_keeps_the_dtype_and_moves_in_place(name: str, dtype: torch.dtype) -> None:
    module, update = Vector(quadratic, dtype=dtype), member(name)
    params = dict(module.named_parameters())
    before, places = {n: p.clone() for n, p in params.items()}, {n: p.data_ptr() for n, p in params.items()}
    update.apply(params, estimate_at(1), Gaussian(), update.init(params), 0.1)
    for n, param in params.items():
        assert param.dtype == dtype
        assert param.data_ptr() == places[n]
        assert not torch.equal(param, before[n])


@pytest.mark.parametrize("name", NAMES)
def test_no_update_moves_at_a_learning_rate_of_zero(name: str) -> None:
    module, update = Vector(quadratic), member(name)
    params = dict(module.named_parameters())
    update.apply(params, estimate_at(1), Gaussian(), update.init(params), 0.0)
    assert all(torch.equal(p, torch.ones_like(p)) for p in params.values())


DECAYING = [n for n in NAMES if contract.known("update", n, {"weight_decay": 0}) and n not in contract.OWN_DECAY]


@pytest.mark.parametrize("name", DECAYING)
def test_weight_decay_is_decoupled(name: str) -> None:
    """With and without decay the moves differ by lr * decay * theta on the matrix, and agree on the vector."""
    moved = []
    for decay in (0.0, 0.3):
        module, update = Vector(quadratic), member(name, weight_decay=decay)
        params = dict(module.named_parameters())
        update.apply(params, estimate_at(1), Gaussian(), update.init(params), 0.1)
        moved.append(params)
    torch.testing.assert_close(moved[0]["matrix"] - moved[1]["matrix"], 0.03 * torch.ones(2, 10), rtol=0, atol=3e-7)
    assert torch.equal(moved[0]["vector"], moved[1]["vector"])


# Formulas, against plain implementations in double precision


def moved_by(update: Update, number_of: int, lr: float) -> tuple[dict[str, Tensor], dict[str, list[np.ndarray]]]:
    """theta after some steps, and the estimates that it was moved by."""
    module = Vector(quadratic)
    params = dict(module.named_parameters())
    seen: dict[str, list[np.ndarray]] = {name: [] for name in params}
    state = update.init(params)
    for number in range(1, number_of + 1):
        estimate = estimate_at(number, 0.3 * number)
        for name, param in params.items():
            seen[name].append(plain_ghat(estimate, name, param))
        state = update.apply(params, estimate, Gaussian(), state, lr)
    return {n: p.detach() for n, p in params.items()}, seen


def assert_theta(found: Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-6, atol=2e-6)


def test_adam_is_torchs() -> None:
    found, seen = moved_by(Adam(), 6, 0.05)
    for name, gradients in seen.items():
        other = torch.ones(gradients[0].shape, dtype=torch.double, requires_grad=True)
        optimizer = torch.optim.Adam([other], lr=0.05)
        for g in gradients:
            other.grad = torch.from_numpy(g)
            optimizer.step()
        assert_theta(found[name], other.detach().numpy())


# A run is its log


def batch_of(number: int) -> Batch:
    examples = make_examples(24)
    return collate([examples[i] for i in indices(0, number, len(examples), 8)], pad_id=0)


def install(space: str, model: TinyModel):
    if space == "full":
        return FullModel(model.module)
    return LoRAFA(rank=4, alpha=8.0).install(model.module, targets(model), 0)


def digest(space) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in space.params.values())).hexdigest()


def method_of(name: str, space: str, in_place: bool = False) -> Method:
    mode = Mode.SEQUENTIAL if space == "full" or in_place else Mode.BOTH
    return Method(RGE(2, 1e-2), Gaussian(), member(name), mode, InPlace() if in_place else None)


def trained(how: Method, model: TinyModel, space, lr: float, log=()) -> list[tuple[float, ...]]:
    events = train(
        how, model, space, batch_of, losses.candidates, Linear().over(lr, 12), lambda: Scores(0.0, 0.0, {}),
        seed=3, steps=12, eval_every=12, log=log,
    )  # fmt: skip
    return [event.coefs for event in events if isinstance(event, StepDone)]


IN_FULL = ("sgd", "adam", "low_rank_momentum", "conservative", "mopi")  # one of each kind of state


@pytest.mark.parametrize(
    ("name", "space"),
    [
        *((name, "lora_fa") for name in NAMES),
        *(pytest.param(name, "full", marks=() if name in IN_FULL else pytest.mark.long) for name in NAMES),
    ],
)
def test_replay_and_resume_equal_the_undisturbed_run_through_the_state(name: str, space: str) -> None:
    """Hash-equal. An update that chooses is run at a learning rate at which it refuses steps."""
    refusing = contract.REFUSING_RATES.get(name)
    lr = refusing or 1e-3
    model = tiny_model()
    whole = install(space, model)
    log = trained(method_of(name, space), model, whole, lr)
    if refusing:
        assert any(g == 0 for coefs in log for g in coefs)
        assert any(g != 0 for coefs in log for g in coefs)
    replayed = install(space, tiny_model())
    replay(method_of(name, space), replayed.params, log, Linear().over(lr, 12), seed=3)
    assert digest(replayed) == digest(whole)
    model = tiny_model()
    resumed = install(space, model)
    assert trained(method_of(name, space), model, resumed, lr, log[:5]) == log[5:]
    assert digest(resumed) == digest(whole)


@pytest.mark.parametrize("space", ["full", "lora_fa"])
def test_in_place_runs_replay_and_resume_with_their_drift(space: str) -> None:
    model = tiny_model()
    whole, how = install(space, model), method_of("adam", space, in_place=True)
    log = trained(how, model, whole, 1e-3)
    assert how.in_place.drift > 0
    model = tiny_model()
    resumed, again = install(space, model), method_of("adam", space, in_place=True)
    assert trained(again, model, resumed, 1e-3, log[:5]) == log[5:]
    assert digest(resumed) == digest(whole)
    assert again.in_place.drift == how.in_place.drift


def test_in_place_losses_are_those_of_exact_evaluation_up_to_rounding() -> None:
    model = tiny_model()
    space = install("full", model)
    found = []
    for in_place in (False, True):
        how = method_of("sgd", "full", in_place)
        f = lambda P: losses.candidates(token_logprobs_of(model), batch_of(1))
        found.append(step(how, model.module, space, f, RunState(), seed=0, step=1, lr=0.0)[0])
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-6)
    assert found[0].coefs == pytest.approx(found[1].coefs, rel=1e-2, abs=1e-3)


def token_logprobs_of(model: TinyModel) -> Tensor:
    return losses.token_logprobs(model, batch_of(1))


@pytest.mark.parametrize(("dtype", "least", "most"), [(torch.float32, 1e-7, 5e-6), (torch.bfloat16, 1e-2, 5e-1)])
def test_drift_is_what_perturbing_and_restoring_leaves(dtype: torch.dtype, least: float, most: float) -> None:
    module = Vector(quadratic, d=40, dtype=dtype)
    before = {n: p.float().clone() for n, p in module.named_parameters()}
    how, params = InPlace(), dict(module.named_parameters())
    for number in range(1, 31):
        how.losses(lambda P: module(), params, Gaussian(), RGE(2, 1e-2).points(0, number))
    left = max((p.float() - before[n]).abs().max().item() for n, p in params.items())
    assert how.drift == pytest.approx(left, rel=1e-3)
    assert least < left < most


def test_theta_is_put_back_in_place_when_f_raises() -> None:
    module = Vector(lambda t: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        InPlace().losses(lambda P: module(), dict(module.named_parameters()), Gaussian(), RGE().points(0, 1))
    for param in module.parameters():
        torch.testing.assert_close(param.detach(), torch.ones_like(param), rtol=0, atol=2e-7)


@pytest.mark.parametrize("name", [n for n in NAMES if contract.known("update", n, {"weight_decay": 0})])
def test_a_negative_weight_decay_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"update\.weight_decay of {name} must be at least 0, not -0\.1"):
        member(name, weight_decay=-0.1)


def test_ghat_is_the_weighted_sum_of_its_directions() -> None:
    param = torch.zeros(3, 5)
    np.testing.assert_allclose(
        ghat(estimate_at(2), Gaussian(), "w", param).numpy(), plain_ghat(estimate_at(2), "w", param), atol=1e-6
    )


# Schedules


@pytest.mark.parametrize("steps", [1, 4, 1000])
def test_schedules_are_their_formulas(steps: int) -> None:
    flat, falling = Constant().over(0.3, steps), Linear().over(0.3, steps)
    for t in range(1, steps + 1):
        assert flat(t) == 0.3
        assert falling(t) == pytest.approx(0.3 * (steps - t + 1) / steps)
    assert falling(1) == 0.3
    assert falling(steps) == pytest.approx(0.3 / steps)
