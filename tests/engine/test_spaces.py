"""Spaces over a small Llama: batched == sequential, replay == run, and LoRA as peft computes it."""

from __future__ import annotations

import hashlib

import pytest
import torch

from tests.engine.conftest import TinyModel, make_examples, targets, tiny_model
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import collate, indices
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.replay import replay
from zo_sweeps.engine.schedules.constant import Constant
from zo_sweeps.engine.schedules.linear import Linear
from zo_sweeps.engine.spaces.dora import DoRA
from zo_sweeps.engine.spaces.full import Full
from zo_sweeps.engine.spaces.lora import LoRA
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.step import Method
from zo_sweeps.engine.train import Evaluated, Scores, StepDone, train
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.definition import identity
from zo_sweeps.methods.evaluation import Mode

pytestmark = pytest.mark.unit
SPACES = {"full": Full(), "lora": LoRA(rank=4, alpha=8.0), "lora_fa": LoRAFA(rank=4, alpha=8.0)}
NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def install(name: str, model: TinyModel, seed: int = 0):
    return SPACES[name].install(model.module, targets(model, NAMES), seed)


def nudge(space, scale: float = 0.1) -> None:
    """Moves a space off its initial values (B = 0 hides errors)."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for param in space.params.values():
            param += scale * torch.randn(param.shape, generator=generator)


def digest(space) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in space.params.values())).hexdigest()


@pytest.mark.parametrize("q", [1, 4, 16])
@pytest.mark.parametrize("name", ["lora", "lora_fa"])
def test_batched_points_have_the_losses_of_sequential_ones(name: str, q: int, model: TinyModel) -> None:
    space = install(name, model)
    nudge(space)
    batch = collate(make_examples(3), pad_id=0)
    objective = lambda P: losses.candidates(token_logprobs(model, batch, P), batch)
    points = RGE(q, 1e-1).points(0, 1)
    found = {
        mode: torch.tensor(evaluate(objective, model.module, space, Gaussian(), points, mode))
        for mode in (Mode.SEQUENTIAL, Mode.OUTER, Mode.INNER, Mode.BOTH)
    }
    assert found[Mode.SEQUENTIAL].std() > 1e-3  # the points do differ
    for mode in (Mode.OUTER, Mode.INNER, Mode.BOTH):
        torch.testing.assert_close(found[mode], found[Mode.SEQUENTIAL], rtol=2e-6, atol=2e-6)


def test_a_batched_point_is_the_same_as_weights_written_in_place(model: TinyModel) -> None:
    space = install("lora_fa", model)
    nudge(space)
    batch = collate(make_examples(3), pad_id=0)
    objective = lambda P: losses.tokens(token_logprobs(model, batch, P), batch)
    points = RGE(2, 1e-1).points(0, 1)
    found = evaluate(objective, model.module, space, Gaussian(), points, Mode.BOTH)
    for point, value in zip(points, found, strict=True):
        base = {n: p.detach().clone() for n, p in space.params.items()}
        with torch.no_grad():
            for n, p in space.params.items():
                p += point.scale * Gaussian().sample(point.key, n, p.shape, p.device)
            plain = objective(1).item()
            for n, p in space.params.items():
                p.copy_(base[n])
        assert value == pytest.approx(plain, rel=3e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_full_points_are_the_same_as_weights_written_in_place(tied: bool) -> None:
    model = tiny_model(tied=tied)
    space = install("full", model)
    batch = collate(make_examples(3), pad_id=0)
    objective = lambda P: losses.candidates(token_logprobs(model, batch, P), batch)
    points = RGE(1, 1e-2).points(0, 1)
    found = evaluate(objective, model.module, space, Gaussian(), points, Mode.SEQUENTIAL)
    before = digest(space)
    for point, value in zip(points, found, strict=True):
        other = tiny_model(tied=tied)
        for n, p in other.module.named_parameters():
            p.data += point.scale * Gaussian().sample(point.key, n, p.shape, p.device)
        plain = losses.candidates(token_logprobs(other, batch), batch).item()
        assert value == pytest.approx(plain, rel=3e-6)
    assert digest(space) == before


def test_a_full_space_refuses_the_batched_modes(model: TinyModel) -> None:
    with pytest.raises(ValueError, match="mode 'both' needs a space that holds several points"):
        evaluate(
            lambda P: torch.zeros(P), model.module, install("full", model), Gaussian(), RGE().points(0, 1), Mode.BOTH
        )


def run(name: str, steps: int, *, mode: Mode = Mode.SEQUENTIAL, log=(), evaluated=(), schedule=Constant):
    """A run from fresh weights: (space, events)."""
    model = tiny_model()
    space = install(name, model, seed=1)
    examples = make_examples(10)
    method = Method(RGE(2, 1e-2), Gaussian(), SGD(), mode)
    events = train(
        method,
        model,
        space,
        lambda number: collate([examples[i] for i in indices(1, number, 10, 4)], 0),
        losses.candidates,
        schedule().over(1e-1 if name != "full" else 1e-3, steps),
        lambda: Scores(0.5, 0.5, {}),
        seed=1,
        steps=steps,
        eval_every=5,
        log=log,
        evaluated=evaluated,
    )
    return space, list(events)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("schedule", [Constant, Linear])
def test_replay_of_the_log_has_the_bits_of_the_run(name: str, schedule) -> None:
    space, events = run(name, 12, schedule=schedule)
    log = [event.coefs for event in events if isinstance(event, StepDone)]
    again = install(name, tiny_model(), seed=1)
    assert digest(again) != digest(space)
    replay(
        Method(RGE(2, 1e-2), Gaussian(), SGD()),
        again.params,
        log,
        schedule().over(1e-1 if name != "full" else 1e-3, 12),
        seed=1,
    )
    assert digest(again) == digest(space)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_run_resumed_at_any_step_has_the_bits_of_an_undisturbed_one(name: str, cut: int) -> None:
    whole, events = run(name, 12)
    log = [event.coefs for event in events if isinstance(event, StepDone)]
    resumed, rest = run(name, 12, log=log[:cut], evaluated={5} if cut >= 5 else ())
    assert digest(resumed) == digest(whole)
    assert [e.coefs for e in rest if isinstance(e, StepDone)] == log[cut:]
    assert [e.step for e in rest if isinstance(e, Evaluated)] == [
        s for s in (5, 10, 12) if s > cut or (s == 5 and cut < 5)
    ]


def test_an_evaluation_lost_after_its_step_is_made_up() -> None:
    _, events = run("lora_fa", 12)
    log = [event.coefs for event in events if isinstance(event, StepDone)]
    _, rest = run("lora_fa", 12, log=log[:5])
    assert isinstance(rest[0], Evaluated)
    assert rest[0].step == 5


def test_all_modes_train_to_the_same_weights_within_rounding() -> None:
    reference, _ = run("lora_fa", 10)
    for mode in (Mode.OUTER, Mode.INNER, Mode.BOTH):
        space, _ = run("lora_fa", 10, mode=mode)
        for name, param in space.params.items():
            torch.testing.assert_close(param, reference.params[name], rtol=0, atol=2e-4)


def test_lora_computes_what_peft_computes(model: TinyModel) -> None:
    from peft import LoraConfig, get_peft_model

    space = install("lora", model)
    nudge(space)
    ids = torch.randint(1, 97, (2, 9), generator=torch.Generator().manual_seed(0))
    ours = model.module(ids).logits
    other = get_peft_model(
        tiny_model().module, LoraConfig(r=4, lora_alpha=8, target_modules=list(NAMES), lora_dropout=0.0)
    ).eval()
    weights = {}
    for name, param in space.params.items():
        layer, _, part = name.rpartition(".")
        weights[f"base_model.model.{layer}.lora_{part}.default.weight"] = param.detach()
    missing = other.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    torch.testing.assert_close(ours, other(ids).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["lora", "lora_fa"])
def test_a_new_space_changes_nothing_and_uninstalling_leaves_the_base_model(name: str, model: TinyModel) -> None:
    ids = torch.randint(1, 97, (2, 9), generator=torch.Generator().manual_seed(0))
    keys = list(model.module.state_dict())
    before = model.module(ids).logits
    space = install(name, model)
    torch.testing.assert_close(model.module(ids).logits, before, rtol=0, atol=0)
    nudge(space)
    assert not torch.equal(model.module(ids).logits, before)
    space.uninstall()
    assert torch.equal(model.module(ids).logits, before)
    assert list(model.module.state_dict()) == keys


def test_lora_fa_moves_b_only_and_lora_both(model: TinyModel) -> None:
    assert {name.rpartition(".")[2] for name in install("lora_fa", tiny_model()).params} == {"B"}
    space = install("lora", model)
    assert {name.rpartition(".")[2] for name in space.params} == {"A", "B"}
    bound = 1 / 32**0.5
    A = torch.cat([p.detach().flatten() for n, p in space.params.items() if n.endswith("q_proj.A")])
    assert A.abs().max() <= bound
    assert A.abs().max() > 0.95 * bound


def test_trainable_state_is_fp32_over_half_weights() -> None:
    model = tiny_model()
    model.module.to(torch.bfloat16)
    space = install("lora", model)
    assert {p.dtype for p in space.params.values()} == {torch.float32}
    nudge(space)
    batch = collate(make_examples(2), pad_id=0)
    objective = lambda P: losses.tokens(token_logprobs(model, batch, P), batch)
    values = evaluate(objective, model.module, space, Gaussian(), RGE(2).points(0, 1), Mode.BOTH)
    assert all(value == value for value in values)


@pytest.mark.parametrize("cls", [LoRA, LoRAFA, DoRA])
def test_a_gaussian_start_draws_a_with_peft_s_variance(cls: type[LoRA | LoRAFA | DoRA]) -> None:
    """A ~ N(0, 1/r²) of n values: the standard error of its deviation is 1/(r·√(2n)), of its mean 1/(r·√n)."""
    linear = torch.nn.Linear(2000, 3, bias=False)
    rank, n = 4, 4 * 2000
    for init, std, kurtosis in (("gaussian", 1 / rank, 3.0), ("kaiming", 2000**-0.5 / 3**0.5, 1.8)):
        layer = cls(rank=rank, init=init).install(torch.nn.Sequential(linear), ["0"], seed=1).layers["0"]
        A = layer.A.detach()
        assert A.std().item() == pytest.approx(std, abs=5 * std / (2 * n) ** 0.5)
        assert A.mean().item() == pytest.approx(0, abs=5 * std / n**0.5)
        assert ((A / A.std()) ** 4).mean().item() == pytest.approx(kurtosis, abs=0.3)
        assert not layer.B.any()


def test_the_default_start_keeps_the_ids_of_recorded_trials() -> None:
    assert "init" not in identity(LoRA())
    assert identity(LoRA(init="gaussian"))["init"] == "gaussian"
