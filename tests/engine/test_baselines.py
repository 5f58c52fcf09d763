"""First-order rows and in-context learning, by themselves and as trials."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.conftest import make_examples, targets, tiny_model
from tests.tasks.common import spec_of
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.caveats import remarks
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ScoredDev, ScoredTest, Steps
from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.engine import first_order, losses
from zo_sweeps.engine.batch import Batch, collate, indices
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.engine.schedules.linear import Linear
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.train import Evaluated, Scores, StepDone
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.parts import Model
from zo_sweeps.methods.space import FullModel
from zo_sweeps.methods.update import Update
from zo_sweeps.models.load import load
from zo_sweeps.plan.build import build
from zo_sweeps.run.run_trial import run_trial
from zo_sweeps.tasks.encode import Demonstrator, demonstration, encode
from zo_sweeps.tasks.spec import TaskSpec

pytestmark = pytest.mark.unit
STEPS, LR = 6, 0.05


def batch_of(step: int) -> Batch:
    examples = make_examples(24)
    return collate([examples[i] for i in indices(0, step, len(examples), 8)], pad_id=0)


def run(model, space, optimizer: type[Update], decay: float = 0.0, dev=lambda: Scores(0.0, 0.0, {}), lr: float = LR):
    update = optimizer(weight_decay=decay, lr=lr, schedule=Linear())
    return first_order.train(
        model, space, batch_of, losses.candidates, update, dev, steps=STEPS, eval_every=3, seed=5
    )  # fmt: skip


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", [SGD, Adam])
def test_first_order_steps_are_the_optimisers_formula(optimizer: type[Update], decay: float) -> None:
    ours, plain = tiny_model(), tiny_model()
    events = list(run(ours, FullModel(ours.module), optimizer, decay))
    seen, m, v = [], {}, {}
    params = dict(plain.module.named_parameters())
    for t in range(1, STEPS + 1):
        for param in params.values():
            param.requires_grad_(True)
        batch, lr = batch_of(t), LR * (1 - (t - 1) / STEPS)
        loss = losses.candidates(token_logprobs(plain, batch), batch)[0]
        seen.append(loss.item())
        gradients = dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
        with torch.no_grad():
            for name, param in params.items():
                g = gradients[name]
                if optimizer is Adam:
                    m[name] = 0.9 * m.get(name, 0) + 0.1 * g
                    v[name] = 0.999 * v.get(name, 0) + 0.001 * g * g
                    g = (m[name] / (1 - 0.9**t)) / ((v[name] / (1 - 0.999**t)).sqrt() + 1e-8)
                param -= lr * (g + (decay * param if param.dim() >= 2 else 0))
    found = [event.loss for event in events if isinstance(event, StepDone)]
    if optimizer is SGD:
        assert found == pytest.approx(seen, rel=1e-5)
        for name, param in ours.module.named_parameters():
            torch.testing.assert_close(param, params[name].detach(), rtol=1e-5, atol=1e-6)
    else:  # Adam divides by the size of the gradient, rounding and all: the first steps are compared
        assert found[:3] == pytest.approx(seen[:3], rel=1e-3)
    assert [event.step for event in events if isinstance(event, Evaluated)] == [3, 6]
    assert not any(param.requires_grad for param in ours.module.parameters())


@pytest.mark.parametrize("fused", [False, True])
def test_adamw_by_torch_is_the_formula_fused_or_not(fused: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    params = {"matrix": torch.randn(7, 5, generator=generator), "bias": torch.randn(5, generator=generator)}
    theta = {name: param.double().clone() for name, param in params.items()}
    stepper = Adam(weight_decay=0.1, lr=0.02, fused=fused).optimizer(first_order._groups(params, 0.1))
    m, v = ({name: torch.zeros_like(param) for name, param in theta.items()} for _ in range(2))
    for t in range(1, 4):
        for name, param in params.items():
            param.grad = torch.randn(param.shape, generator=generator)
            g, decay = param.grad.double(), 0.1 if param.dim() == 2 else 0.0
            m[name], v[name] = 0.9 * m[name] + 0.1 * g, 0.999 * v[name] + 0.001 * g * g
            u = (m[name] / (1 - 0.9**t)) / ((v[name] / (1 - 0.999**t)).sqrt() + 1e-8)
            theta[name] -= 0.02 * (u + decay * theta[name])
        stepper.step()
    assert all(bool(group["fused"]) is fused for group in stepper.param_groups)
    for name, param in params.items():
        torch.testing.assert_close(param.double(), theta[name], rtol=1e-6, atol=1e-6)


def test_first_order_lora_fa_moves_its_own_parameters_alone() -> None:
    model = tiny_model()
    before = {name: p.clone() for name, p in model.module.named_parameters()}
    space = LoRAFA(rank=4, alpha=8.0).install(model.module, targets(model), 0)
    list(run(model, space, SGD))
    assert all(p.abs().max() > 0 for p in space.params.values())
    space.uninstall()
    assert all(torch.equal(p, before[name]) for name, p in model.module.named_parameters())


def test_a_first_order_loss_that_is_not_finite_stops_at_once_with_the_weights_of_the_step_before() -> None:
    model, before = tiny_model(), {}
    space = FullModel(model.module)

    def watch() -> None:
        for _ in run(model, space, SGD, lr=1e30):
            before.update({name: p.detach().clone() for name, p in space.params.items()})

    with pytest.raises(DivergedError, match=r"non-finite loss at step \d, seed 5: (nan|inf)"):
        watch()
    assert before  # a step was done
    assert all(torch.equal(p.nan_to_num(), before[name].nan_to_num()) for name, p in space.params.items())


def test_a_first_order_dev_loss_that_is_not_finite_stops_the_run() -> None:
    model = tiny_model()
    with pytest.raises(DivergedError, match="non-finite dev loss at step 3, seed 5: nan"):
        list(run(model, FullModel(model.module), SGD, dev=lambda: Scores(float("nan"), 0.0, {})))


# In-context learning

TASK = {
    "name": "t",
    "display": "T",
    "kind": "classification",
    "metric": "accuracy",
    "fields": ["text"],
    "label_field": "label",
    "dialects": {"m": {"loss": "candidates", "template": "{{ text }} It was", "options": [" bad", " good"]}},
}
ROWS = [{"text": f"The {word} film is {word}.", "label": i % 2} for i, word in enumerate("abcdefghijklmnop")]


@pytest.fixture(scope="module")
def spec() -> TaskSpec:
    return spec_of(TASK, "m")


@pytest.fixture(scope="module")
def tokenizer():
    return load(Model(), torch.float32, "cpu").tokenizer


def demonstrator(spec: TaskSpec, tokenizer, k: int = 4, seed: int = 0, max_length: int = 2000) -> Demonstrator:
    return Demonstrator(spec, [demonstration(spec, row) for row in ROWS], k, seed, tokenizer, max_length)


def text_of(tokenizer, example) -> str:
    return tokenizer.decode(example.candidates[example.gold].ids, skip_special_tokens=True).strip()


def test_a_prompt_has_k_solved_examples_of_the_train_split_before_it(spec: TaskSpec, tokenizer) -> None:
    row = {"text": "What a film!", "label": 1}
    example = demonstrator(spec, tokenizer).encode(row, "test", 3)
    *shown, own = text_of(tokenizer, example).split("\n\n")
    assert own == "What a film! It was good"
    assert len(set(shown)) == 4
    assert set(shown) <= {"".join(demonstration(spec, r)) for r in ROWS}
    assert "".join(demonstration(spec, ROWS[1])) == "The b film is b. It was good"
    plain = encode(spec, row, tokenizer, 2000)
    assert [c.answer_length for c in example.candidates] == [c.answer_length for c in plain.candidates]
    assert [c.ids[-1] for c in example.candidates] == [c.ids[-1] for c in plain.candidates]
    assert example.prompt_ids == example.candidates[0].ids[: -example.candidates[0].answer_length]


def test_demonstrations_are_addressed_by_seed_split_and_row(spec: TaskSpec, tokenizer) -> None:
    encoder, row = demonstrator(spec, tokenizer), {"text": "What a film!", "label": 1}
    first = encoder.encode(row, "test", 0)
    others = [encoder.encode(row, "test", 1), encoder.encode(row, "dev", 0)]
    others.append(demonstrator(spec, tokenizer, seed=1).encode(row, "test", 0))
    assert len({example.prompt_ids for example in (first, *others)}) == 4
    assert demonstrator(spec, tokenizer).encode(row, "test", 0) == first


@pytest.mark.parametrize("max_length", [10, 30, 60, 90, 120])
def test_as_many_whole_demonstrations_as_fit(max_length: int, spec: TaskSpec, tokenizer) -> None:
    row = {"text": "What a film!", "label": 1}
    most = text_of(tokenizer, demonstrator(spec, tokenizer, k=8).encode(row, "test", 0)).split("\n\n")
    example = demonstrator(spec, tokenizer, k=8, max_length=max_length).encode(row, "test", 0)
    shown = text_of(tokenizer, example).split("\n\n")
    assert shown == most[len(most) - len(shown) :]
    assert all(len(c.ids) <= max_length for c in example.candidates)
    if len(shown) < len(most):  # one more would not have fitted
        more = "\n\n".join(most[len(most) - len(shown) - 1 :])
        assert len(tokenizer(more)["input_ids"]) > max_length


# As trials, through the planner and the worker


class Events(list):
    def emit(self, event) -> None:
        self.append(event)


def trials(folder: Path, block: str, *overrides: str) -> list[Trial]:
    (folder / "grid").mkdir(exist_ok=True)
    model = "model: random_llama, model.arch.hidden_size: 64, model.arch.num_hidden_layers: 2"
    head = f"# @package grid\nname: mine\nfixed: {{{model}, task: demo_remarks, prompt: mezo}}\nseeds: [0]\n"
    (folder / "grid" / "mine.yaml").write_text(f"{head}blocks:\n  a: {{fixed: {block}}}\n")
    small = ["split.train=16", "split.dev=6", "split.test=8", *overrides]
    return list(build(Composer(["+grid=mine", *small], [str(folder)])).trials)


def outcome_of(trial: Trial, journal=()) -> tuple[Outcome, Events]:
    events = Events()
    return run_trial(trial, events, list(journal), 1, lambda: False), events


FEW = "train: {steps: 3, batch: 2, eval_every: 2, max_length: 64}"


@pytest.mark.parametrize(
    "block",
    [
        f"{{method: fo_sgd_lora_fa, {FEW}}}",
        f"{{method: fo_sgd_full, update: {{weight_decay: 0.1}}, {FEW}}}",
        f"{{method: prge, update: momentum, {FEW}}}",
        f"{{method: prge, update: adam, {FEW}}}",
        f"{{method: prge, update: sign, {FEW}}}",
        f"{{method: prge, update: conservative, {FEW}}}",
        f"{{method: mezo, update: adam, {FEW}}}",
        "{method: prge, train: {objective: accuracy, steps: 3, batch: 2, eval_every: 2}}",
    ],
)
def test_every_update_and_baseline_runs_as_a_trial(block: str, tmp_path: Path) -> None:
    (trial,) = trials(tmp_path, block)
    outcome, events = outcome_of(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    assert outcome.steps_done == 3
    assert "drift" not in outcome.metrics
    assert sum(len(event.losses) for event in events if isinstance(event, Steps)) == 3


LESS = {"trained_bits": 16, "state_bits": 8.125, "recomputed": 1}


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (f"{{method: fo_full, {FEW}}}", {}),
        (f"{{method: fo_full_8bit, update: {{paged: true}}, {FEW}}}", LESS),
        (f"{{method: fo_full_8bit, precision: fp16, {FEW}}}", LESS),
        (f"{{method: fo_sgd_full, method.weights: bf16, {FEW}}}", {"trained_bits": 16}),
        (f"{{method: fo_sgd_lora_fa, method.gradient_checkpointing: true, {FEW}}}", {"recomputed": 1}),
        (f"{{method: fo_lora_fa_layerwise, {FEW}}}", {"recomputed": 1}),
    ],
)
def test_backpropagation_with_less_memory_says_so_in_its_outcome(
    block: str, said: dict[str, float], tmp_path: Path
) -> None:
    (trial,) = trials(tmp_path, block)
    outcome, _ = outcome_of(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    names = ("trained_bits", "state_bits", "recomputed")
    assert {name: outcome.metrics[name] for name in names if name in outcome.metrics} == said
    assert ("updates_lost" in outcome.metrics) == ("trained_bits" in said)
    assert remarks([outcome.metrics], of_cost=True) == remarks([said], of_cost=True)
    assert len(remarks([said])) == len(said), "each is a footnote of the cell"


def test_checkpointing_changes_no_loss_and_the_format_of_weights_a_little(tmp_path: Path) -> None:
    changes = ({}, {"gradient_checkpointing": "true"}, {"weights": "bf16"})
    blocks = [
        f"{{method: fo_sgd_full, {', '.join(f'method.{k}: {v}' for k, v in c.items())}{', ' * bool(c)}{FEW}}}"
        for c in changes
    ]
    made = [trials(tmp_path, block)[0] for block in blocks]
    assert len({trial.trial_id for trial in made}) == 3
    plain, again, half = (
        [loss for event in outcome_of(trial)[1] if isinstance(event, Steps) for loss in event.losses] for trial in made
    )
    assert again == plain
    assert half != plain
    assert half == pytest.approx(plain, rel=0.05)


@pytest.mark.parametrize("method", ["mezo_compat", "mezo"])
def test_in_place_trials_record_their_drift(method: str, tmp_path: Path) -> None:
    (trial,) = trials(tmp_path, f"{{method: {method}, {FEW}}}", "evaluation.restore=in_place")
    outcome, _ = outcome_of(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    assert 0 < outcome.metrics["drift"] < 1e-5


def test_in_context_learning_runs_as_a_trial_of_its_own_per_seed_and_number(tmp_path: Path) -> None:
    (one,) = trials(tmp_path, "{method: icl, train: {max_length: 128}}", "method.demonstrations=4")
    (two,) = trials(tmp_path, "{method: icl, train: {max_length: 128}}", "method.demonstrations=4", "seed=1")
    (three,) = trials(tmp_path, "{method: icl, train: {max_length: 128}}", "method.demonstrations=2")
    (zero,) = trials(tmp_path, "{method: zero_shot, train: {max_length: 128}}")
    assert len({trial.trial_id for trial in (one, two, three, zero)}) == 4
    outcomes = [outcome_of(trial)[0] for trial in (one, two, zero)]
    assert all(outcome.state is TrialState.SUCCEEDED for outcome in outcomes), outcomes
    assert len({outcome.metrics["test/loss"] for outcome in outcomes}) == 3
    assert one.steps == 0


@pytest.mark.parametrize("method", ["fo_sgd_full", "mezo"])
def test_a_trial_whose_weights_run_away_ends_as_diverged_and_never_as_finished(method: str, tmp_path: Path) -> None:
    """One step of a huge learning rate: the step's own loss is finite, the dev loss after it is not."""
    few = "train: {steps: 1, batch: 2, eval_every: 1, max_length: 64}"
    (trial,) = trials(tmp_path, f"{{method: {method}, update: {{lr: 1.0e+38, weight_decay: 1.0e+10}}, {few}}}")
    outcome, events = outcome_of(trial)
    assert outcome.state is TrialState.DIVERGED
    assert outcome.error.startswith("non-finite dev loss at step 1, seed 0")
    assert "test/loss" not in outcome.metrics
    assert not [event for event in events if isinstance(event, (ScoredDev, ScoredTest))]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            "{method: fo_full, update: momentum}",
            "update 'momentum' does not go with method kind 'fo'; use adam or adam_8bit or sgd",
        ),
        ("{method: mezo, update: adam_8bit}", "update 'adam_8bit' does not go with method kind 'zo'"),
        (
            "{method: fo_lora_fa, method.weights: bf16}",
            "method.weights=bf16 is of space=full: space 'lora_fa' trains fp32",
        ),
        (
            "{method: fo_full, method.weights: bf16}",
            "update 'adam' would keep its state in bf16.*; use adam_8bit or sgd",
        ),
        (
            "{method: fo_lora_fa, method.gradient_checkpointing: true, space: prefix}",
            "space 'prefix' has keys and values",
        ),
        (
            "{method: fo_full, method.layerwise: true}",
            "method.layerwise moves a layer .*: use space=dora or lora or lora_fa or vera, not full",
        ),
        ("{method: fo_lora_fa_layerwise, space: prefix}", "use space=dora or lora or lora_fa or vera, not prefix"),
        ("{method: fo_lora_fa_layerwise, space: random_subset}", "or lora_fa or vera, not random_subset"),
        (
            "{method: fo_lora_fa_layerwise, method.mixed_precision: true}",
            "method.mixed_precision skips a step whole: use one",
        ),
        (
            "{method: fo_lora_fa_layerwise, method.gradient_checkpointing: true}",
            "method.layerwise computes layers again already",
        ),
        ("{method: mezo, method.gradient_checkpointing: true}", "unknown key 'method.gradient_checkpointing'"),
        ("{method: mezo, update: {name: adam, fused: true}}", "update.fused is of backpropagation"),
        ("{method: fo_full, method.weights: fp16}", "unknown weights 'fp16'.*choose from: bf16, fp32"),
        ("{method: prge, evaluation: {restore: in_place}}", "restore=in_place holds one point"),
        ("{method: mezo, evaluation: {restore: inplace}}", "unknown restore 'inplace'"),
        ("{method: fo_full, train: {objective: accuracy}}", "accuracy is not differentiable"),
        (
            "{method: mezo, train: {objective: f1}}",
            "train.objective must be accuracy, candidates, tokens or loss for this task, not f1",
        ),
        ("{method: mezo, update: {rounding: stochastic}}", "not space=full and fp32"),
        ("{method: prge, precision: bf16, update: {rounding: stochastic}}", "not space=lora_fa and bf16"),
        ("{method: quzo, precision: nf4}", "space 'codes' trains integer codes: use precision=int4 or int8, not nf4"),
        ("{method: qes}", "use precision=int4 or int8, not fp32"),
        ("{method: quzo, precision: int8, perturbation: gaussian}", "use perturbation=quantized, not gaussian"),
        ("{method: mezo, perturbation: quantized}", "draws integers: use space=codes, not full"),
        ("{method: quzo, precision: int8, update: adam}", "update.rounding=stochastic, not adam"),
        ("{method: quzo, precision: int8, update: {rounding: nearest}}", "update.rounding=stochastic, not sgd"),
        ("{method: mezo, update: error_feedback}", "update 'error_feedback' moves integers: use space=codes, not full"),
        ("{method: quzo, precision: int8, update: {nonnegative: true}}", "update.nonnegative must be false"),
        ("{method: qes, precision: int4, evaluation: {mode: both}}", "mode=both cannot hold several points"),
        ("{method: qes, precision: int4, evaluation: {restore: in_place}}", "use evaluation.restore=exact"),
        (
            "{method: fo_sgd_full, precision: int8, space: codes}",
            "backpropagation does not reach space 'codes': use a zeroth-order method",
        ),
        (
            "{method: fo_lora_fa, precision: w4a8}",
            "precision=w4a8 rounds activations, which no gradient passes: use a zeroth-order method",
        ),
        ("{method: prge, precision: w4a8, precision.compute: fp16}", "unknown key 'precision.compute'"),
        ("{method: icl, method.demonstrations: 0}", "method.demonstrations must be at least 1, not 0"),
    ],
)
def test_what_does_not_go_together_is_refused_when_planned(block: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        trials(tmp_path, block)
