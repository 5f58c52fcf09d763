"""Trials that measure: gradients during training, time of generation, operations of a step."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.run.common import make, measured, run
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.caveats import remarks
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Generated, SquaredGradients, Start, Steps, Updates, Warned, only
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.methods.parts import Model
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import build
from zo_sweeps.record.journal import evals, gradients, trail
from zo_sweeps.run.runner import drawn_alone, nucleus_token

pytestmark = pytest.mark.unit

SMALL = ["train.steps=4", "train.eval_every=2", "train.batch=4", "split.train=24"]
LOOK = ["gradients.samples=3", "gradients.text_samples=2", "gradients.length=32"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "lines.jsonl"
    told = ["A long walk by the sea does one good.", "The train was late again, and nobody said why it was."]
    file.write_text("".join(json.dumps({"text": line}) + "\n" for line in told))
    return file


def looking(text: Path, *overrides: str) -> Trial:
    return make("method=gradients", "update.lr=0.05", *SMALL, *LOOK, f"gradients.text={text}", *overrides)


@pytest.fixture(scope="module")
def looked(text: Path) -> tuple[Any, list[Any]]:
    outcome, journal = run(looking(text))
    assert outcome.state is TrialState.SUCCEEDED, outcome.error
    return outcome, journal


def test_gradients_are_looked_at_before_the_first_step_and_at_every_evaluation(looked: Any) -> None:
    outcome, journal = looked
    found = gradients(journal)
    assert list(found) == [0, 2, 4]
    for event in found.values():
        assert all(a <= b for a, b in zip(event.mean, event.mean[1:], strict=False))
        assert event.mean[-1] == pytest.approx(1)
        assert event.layers == 2 * 7
        for density in ("0.0001", "0.001", "0.01"):
            best = event.covered[f"task_dynamic/{density}"] * (1 + 1e-9)  # summed in another order
            assert best >= event.covered[f"task_static/{density}"] > 0
            assert best >= event.covered[f"text_static/{density}"] >= 0
    first, last = found[0].covered, found[4].covered
    assert first["task_static/0.01"] == pytest.approx(first["task_dynamic/0.01"], rel=1e-6)
    assert last["task_static/0.01"] < last["task_dynamic/0.01"], "the weights have moved"
    assert outcome.metrics["gradients/task_static/0.01"] == last["task_static/0.01"]
    curve = trail(journal)["gradients/task_static/0.01"]
    assert [(step, value) for step, _, value in curve] == [(s, e.covered["task_static/0.01"]) for s, e in found.items()]


def test_looking_changes_nothing_of_the_training(looked: Any, text: Path) -> None:
    outcome, journal = looked
    plain, other = run(looking(text, "gradients.samples=0"))
    assert measured(outcome, journal) == measured(plain, other)


def test_a_run_that_was_stopped_looks_again_and_tells_each_step_once(looked: Any, text: Path) -> None:
    trial = looking(text)
    asked = []
    stopped, journal = run(trial, stop=lambda: len(asked) > 2 or bool(asked.append(1)))
    assert stopped.state is TrialState.CANCELLED
    assert 0 < len(gradients(journal)) < 3
    outcome, journal = run(trial, journal, attempt=2)
    assert outcome.state is TrialState.SUCCEEDED
    told = [event.step for event in journal if isinstance(event, SquaredGradients)]
    assert told == [0, 2, 4]
    expected = gradients(looked[1])
    assert gradients(journal)[4].covered == pytest.approx(expected[4].covered, rel=1e-6)


def test_the_first_look_is_autograd_s_on_the_base_model(looked: Any, text: Path) -> None:
    from zo_sweeps.models.load import load
    from zo_sweeps.tasks.data import load_splits
    from zo_sweeps.tasks.spec import TaskSpec

    config = TrialConfig.of(looking(text).config)
    spec = TaskSpec.of(config.task, config.prompt.name)
    rows = load_splits(spec, config.task, None, config.split).train[:3]
    model = load(config.model, torch.float32, "cpu")
    layers = {n: m for n, m in model.module.named_modules() if n.endswith("_proj")}
    for layer in layers.values():
        layer.weight.requires_grad_(True)
    total = torch.zeros(())
    for row in rows:  # the candidates' loss, written out: cross-entropy over mean log-probabilities of the answers
        scores = []
        for option in (" terrible", " great"):
            prompt = model.tokenizer(f"{row['sentence'].strip()} It was", add_special_tokens=False)["input_ids"]
            answer = model.tokenizer(option, add_special_tokens=False)["input_ids"]
            ids = torch.tensor([[*model.front, *prompt, *answer]])
            told = model.module(ids).logits[0].log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
            scores.append(told[-len(answer) :].mean())
        total = total - torch.stack(scores).log_softmax(0)[row["label"]]
    found = torch.autograd.grad(total, [layer.weight for layer in layers.values()])
    shares = []
    for gradient in found:
        square = gradient.flatten().double().square().sort(descending=True).values
        shares.append(float(square[: round(0.01 * len(square))].sum() / square.sum()))
    expected = sum(shares) / len(shares)
    assert gradients(looked[1])[0].covered["task_dynamic/0.01"] == pytest.approx(expected, rel=1e-3)


def test_a_text_that_is_not_there_is_missing_and_other_spaces_are_refused(tmp_path: Path, text: Path) -> None:
    blocks = [
        f"~grid.blocks.{name}"
        for name in ("zero_shot", "fo_full", "mezo", "fo_lora_fa", "fo_lora_fa_layerwise", "zo_lora_fa_q1")
    ]
    nowhere = [*blocks, "method=gradients", *LOOK, f"gradients.text={tmp_path}/nowhere.jsonl"]
    missing = build(Composer(["+grid=quickstart", "grid.relabel=true", "grid.seeds=[3]", *nowhere])).missing
    assert missing
    for why in missing.values():
        assert why == f"no text at {tmp_path}/nowhere.jsonl (gradients.text, under data.dir)"
    with pytest.raises(UserError, match=r"gradients\.samples requires method\.kind=fo and space=full"):
        make(*LOOK, f"gradients.text={text}")


def test_what_is_looked_at_is_another_trial(text: Path, tmp_path: Path) -> None:
    copy = tmp_path / "moved.jsonl"
    copy.write_bytes(text.read_bytes())
    assert looking(text).trial_id == looking(copy).trial_id, "a path is no identity"
    copy.write_text(copy.read_text() + '{"text": "one more"}\n')
    assert len({t.trial_id for t in (looking(text), looking(copy), looking(text, "gradients.samples=4"))}) == 3


def generating(*overrides: str) -> Trial:
    return make("method=generate", "method.new_tokens=5", *overrides)


def test_generation_is_timed_and_trains_nothing() -> None:
    outcome, journal = run(generating())
    assert outcome.state is TrialState.SUCCEEDED, outcome.error
    (event,) = (event for event in journal if isinstance(event, Generated))
    assert event.tokens == 5
    assert len(event.seconds) == 3
    assert outcome.metrics["seconds_per_token"] == pytest.approx(sorted(event.seconds)[1] / 5)
    assert "test/metric" not in outcome.metrics


@pytest.mark.parametrize("product", ["add", "addmm"])
def test_generation_over_a_sparse_space_leaves_the_model_as_it_was(product: str) -> None:
    from zo_sweeps.run import workbench as loaded

    outcome, _ = run(generating("space=random_subset", "space.density=0.01", f"space.product={product}"))
    assert outcome.state is TrialState.SUCCEEDED, outcome.error
    assert outcome.metrics["trainable_parameters"] > 0
    warm = loaded.warm
    assert warm is not None
    layers = [module for name, module in warm.model.module.named_modules() if name.endswith("_proj")]
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)


def test_a_continuation_has_exactly_the_tokens_that_are_asked_for_and_they_are_the_likeliest() -> None:
    from zo_sweeps.models.load import load

    model = load(Model(), torch.float32, "cpu")
    prompt = model.prompt("A film that")
    found = model.generate_exactly(prompt, 6)
    ids = list(prompt)
    for _ in range(6):
        with torch.inference_mode():
            logits = model.module(torch.tensor([ids])).logits[0, -1]
        logits = logits.clone()
        logits[model.eos_id] = -torch.inf
        ids.append(int(logits.argmax()))
    assert found == ids[len(prompt) :]


def drawn(logits: list[float], top_p: float, u: float) -> int:
    """The rule of the nucleus, a token at a time, in doubles."""
    chances = [math.exp(value) for value in logits]
    total = sum(chances)
    order, nucleus, held = sorted(range(len(logits)), key=lambda i: -logits[i]), [], 0.0
    while held < top_p * total:
        nucleus.append(order[len(nucleus)])
        held += chances[nucleus[-1]]
    so_far = 0.0
    for token in nucleus:
        so_far += chances[token]
        if so_far >= u * held:
            return token
    return nucleus[-1]


@pytest.mark.parametrize("top_p", [0.1, 0.55, 0.9, 1.0])
def test_a_token_of_the_nucleus_is_drawn_by_its_chance(top_p: float) -> None:
    logits, points = [0.3, 2.0, -1.0, 1.5, 0.3], [(i + 0.5) / 400 for i in range(400)]
    rows = torch.tensor([logits]).expand(len(points), -1)
    found = nucleus_token(rows, top_p, torch.tensor(points)).tolist()
    assert found == [drawn(logits, top_p, u) for u in points]
    assert len(set(found)) == {0.1: 1, 0.55: 2, 0.9: 4, 1.0: 5}[top_p]


def test_a_sampled_continuation_is_the_same_again_by_its_seed() -> None:
    from zo_sweeps.models.load import load

    model = load(Model(), torch.float32, "cpu")
    prompt = model.prompt("A film that")
    one, again, other = (model.generate_exactly(prompt, 12, partial(drawn_alone, 0.9, seed)) for seed in (3, 3, 4))
    assert one == again
    assert one != other
    assert model.generate_exactly(prompt, 6, partial(drawn_alone, 1e-6, 3)) == model.generate_exactly(prompt, 6)
    plain, sampled = generating(), generating("method.top_p=0.9")
    assert plain.trial_id != sampled.trial_id
    assert run(sampled)[0].state is TrialState.SUCCEEDED


def test_what_cannot_be_generated_is_refused_when_it_is_planned() -> None:
    for override, message in (
        ("space=lora_fa", "generation is timed over space full or outliers or random_subset, not lora_fa"),
        ("evaluation.mode=inner", "generation is of one point: evaluation.mode must be sequential, not inner"),
        ("method.top_p=1.5", "method.top_p must be above 0 and at most 1, not 1.5"),
        ("method.new_tokens=0", "method.new_tokens must be at least 1, not 0"),
    ):
        with pytest.raises(UserError, match=message):
            make("method=generate", override)


def test_the_two_ways_over_a_sparse_space_are_two_trials() -> None:
    over = ["space=random_subset"]
    ids = {generating(*over, f"space.product={product}").trial_id for product in ("add", "addmm")}
    assert len(ids | {generating(*over, "space.density=0.01").trial_id, generating().trial_id}) == 4


@pytest.mark.parametrize(("method", "passes"), [("mezo", 2), ("fo_full", 3)])
def test_operations_are_two_a_multiplication_of_a_weight_in_every_pass(method: str, passes: int) -> None:
    """Weights that multiply every token of the batch; the head's, the answers' positions; attention adds a little."""
    rows, tokens = 4, 64  # both answers are one token: a row serves them
    given = ["task=timing", f"train.max_length={tokens}", "model=random_llama", "train.flops=true", "train.steps=2"]
    given += ["update.lr=0", "estimator.q=1"] if method == "mezo" else ["update.lr=0"]
    outcome, _ = run(make(f"method={method}", *given))
    assert outcome.state is TrialState.SUCCEEDED, outcome.error
    layers = 4 * (4 * 256 * 256 + 3 * 256 * 704)
    least = 2 * rows * tokens * layers * passes
    assert least <= outcome.metrics["flops_per_step"] <= 1.15 * least
    assert "flops_per_step" not in run(make(f"method={method}", *given, "train.flops=false"))[0].metrics


@pytest.mark.parametrize("method", ["mezo", "eggroll", "mezo_compat"])
def test_a_run_that_half_precision_does_not_resolve_says_so_once_in_its_journal_and_its_metrics(method: str) -> None:
    sizes = ("hidden_size=32", "intermediate_size=48", "num_hidden_layers=1")
    tiny = ["model=random_llama", *(f"model.arch.{size}" for size in sizes), f"method={method}"]
    options = ["precision=bf16", "estimator.eps=1e-5", "update.lr=1e-9", "train.steps=16"]
    trial = make(*tiny, *options)
    stops = iter([False] * 5)
    _, journal = run(trial, stop=lambda: next(stops, True))
    outcome, journal = run(trial, journal, attempt=2)
    assert outcome.state is TrialState.SUCCEEDED, outcome.error
    assert [event.metric for event in journal if isinstance(event, Warned)] == ["updates_lost", "noise_to_signal"]
    assert [event.step for event in journal if isinstance(event, Updates)] == [1, 2, 4, 8, 16]
    resumed = next(event.resumed_from for event in journal if isinstance(event, Start) and event.attempt == 2)
    measured = [step for event in only(Steps, journal) for step, *_ in event.rounding or ()]
    assert measured == [step for step in [*range(2, 10), 16] if step != resumed + 1]
    assert outcome.metrics["updates_lost"] > 0.9
    assert outcome.metrics["noise_to_signal"] > 0.5
    notes = remarks([outcome.metrics])
    assert [note for note in notes if "rounding" in note] == notes
    assert len(notes) == 2


def test_noise_is_measured_at_the_levels_of_rounded_activations_too_and_costs_a_run_nothing_that_it_reports() -> None:
    tiny = ["model=random_llama", "model.arch.hidden_size=32", "model.arch.num_hidden_layers=1", "update.lr=1e-4"]
    fine, journal = run(make(*tiny, "method=mezo", "train.steps=9", "train.flops=true"))
    assert fine.metrics["noise_to_signal"] < 1e-3
    assert "updates_lost" not in fine.metrics
    assert not [event for event in journal if isinstance(event, (Warned, Updates))]
    few, _ = run(make(*tiny, "method=mezo", "train.steps=8", "train.flops=true"))
    assert "noise_to_signal" not in few.metrics, "the ratio of so few steps is mostly chance"
    assert few.metrics["flops_per_step"] == fine.metrics["flops_per_step"]
    levels, _ = run(make(*tiny, "method=prge", "precision=w4a8", "estimator.eps=1e-4", "train.steps=9"))
    assert levels.metrics["noise_to_signal"] > 0.5


def test_a_cell_with_one_seed_that_is_worse_than_the_untrained_model_says_it_of_a_run_alone() -> None:
    (line,) = remarks([{"dev_loss_change": 0.0015}, {"dev_loss_change": -0.0061}])  # the mean is better
    assert line.startswith("a run is not better than before training: the dev loss of its selected step is 0.0015 ")


def test_a_trial_that_ends_worse_than_the_untrained_model_says_so_in_its_cell() -> None:
    untrained, _ = run(make("method=zero_shot"))
    for method, lr, worse in (("prge", "0.3", False), ("mezo", "1", True)):
        outcome, journal = run(make(f"method={method}", f"update.lr={lr}", "train.steps=4"))
        assert outcome.state is TrialState.SUCCEEDED, outcome.error
        change = outcome.metrics["dev/loss"] - untrained.metrics["dev/loss"]
        assert outcome.metrics["dev_loss_change"] == pytest.approx(change, abs=1e-6)
        assert (change > 1) if worse else (change < -0.01)
        assert ("not better than before training" in " ".join(remarks([outcome.metrics]))) == worse
        assert {step for _, step in evals(journal)} == {2, 4}, "what no step made is never selected"
    by_metric, _ = run(make("method=mezo", "update.lr=1", "train.steps=4", "train.select=metric"))
    assert "dev_loss_change" not in by_metric.metrics


def test_a_resumed_attempt_takes_the_untrained_score_from_its_log() -> None:
    trial = make("method=prge", "update.lr=0.3", "train.steps=4")
    whole, journal = run(trial)
    first = next(event for event in journal if isinstance(event, Steps))
    kept = replace(first, untrained=first.untrained + 1, losses=first.losses[:1], coefs=first.coefs[:1])
    resumed, _ = run(trial, [next(event for event in journal if isinstance(event, Start)), kept], attempt=2)
    assert resumed.metrics["dev/loss"] == whole.metrics["dev/loss"]
    assert resumed.metrics["dev_loss_change"] == pytest.approx(whole.metrics["dev_loss_change"] - 1, abs=1e-9)
