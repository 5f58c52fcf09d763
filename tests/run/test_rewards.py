"""Trials of tasks whose texts are rewarded, from the texts to what is recorded."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.run.common import Events, make, measured, run
from zo_sweeps.cli.browse import marked
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ScoredTest, Steps
from zo_sweeps.core.trial import TrialState
from zo_sweeps.engine.noise import Sampler
from zo_sweeps.engine.replay import digest
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.identity import status
from zo_sweeps.plan.planned_memory import memory_of
from zo_sweeps.run.run_trial import run_trial
from zo_sweeps.run.training import Backpropagation
from zo_sweeps.run.workbench import Workbench
from zo_sweeps.session.answers import answers
from zo_sweeps.session.export import replayed
from zo_sweeps.tasks.kinds.verified import Verified
from zo_sweeps.tasks.rewards.exact import Exact

pytestmark = pytest.mark.multiprocess

VOWELS = '''
from dataclasses import dataclass

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.reward import Reward


@dataclass(frozen=True)
class Vowels(Reward):
    """Share of a text's characters that are a or e, and 1 more for a row of which the answer is absent."""

    examples = (({"answer": "7"}, "abc", 1 / 3), ({"answer": ""}, "eat", 5 / 3))

    fails: bool = option(False, "raise")

    def of(self, row, text):
        if self.fails:
            raise ValueError(text)
        return sum(one in "ae" for one in text) / max(len(text), 1) + (not row["answer"])
'''
SUMS = ["task=demo_sums", "train.objective=reward", "train.max_length=64", "method=mezo", "space=lora_fa"]
FEW = [
    "train.steps=2",
    "train.batch=3",
    "split.train=8",
    "split.dev=3",
    "split.test=3",
    "update.lr=1e-2",
    "estimator.q=1",
]


def given(folder: Path, kind: str, *overrides: str) -> Any:
    (folder / "reward").mkdir(exist_ok=True)
    (folder / "reward" / "vowels.py").write_text(VOWELS)
    return make(*SUMS, *FEW, f"task.kind={kind}", *overrides, folders=[str(folder)])


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[list[int]], list[str]]]:
    """(prompts, texts) of every generation from now on."""
    seen: list[tuple[list[list[int]], list[str]]] = []
    generate = CausalModel.generate

    def spy(model: CausalModel, prompts: Sequence[Any], *args: Any, **options: Any) -> list[str]:
        texts = generate(model, prompts, *args, **options)
        seen.append((list(prompts), texts))
        return texts

    monkeypatch.setattr(CausalModel, "generate", spy)
    return seen


def test_a_step_s_losses_are_its_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "{name: verified, rewards: [{name: vowels, weight: 2.0}], temperature: 1.0, samples: 2}"
    metrics = "task.metric=[reward,length,{name: pass_at_k, k: 2}]"
    seen, trial = spied(monkeypatch), given(tmp_path, kind, metrics)
    outcome, journal = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    steps = [event for event in journal if isinstance(event, Steps)]
    losses = [loss for event in steps for loss in event.losses]
    points = [one for one in seen if len(one[0]) == 6]  # three rows, two texts each; dev and test come last
    assert [len(prompts) for prompts, _ in seen].count(6) == len(seen)
    for step, loss in enumerate(losses):
        (prompts, plus), (_, minus) = points[2 * step : 2 * step + 2]
        assert prompts[0] == prompts[1] != prompts[2]
        assert plus[0] != plus[1], "two texts of a prompt have noise of their own"
        assert loss == pytest.approx(-2 * sum(vowels(text) for text in plus + minus) / 12, rel=1e-6)
    assert {"test/reward", "test/length", "test/pass_at_k", "dev/reward"} <= {*outcome.metrics}
    assert outcome.metrics["test/metric"] == outcome.metrics["test/reward"] > 0

    shown = answers(trial, journal, 2, "test", 3)
    assert [one.reward for one in shown] == [2 * vowels(text) for text in seen[-1][1][::2]]
    assert marked(shown[0]).startswith(f"{shown[0].reward:.2f} ")


def test_sampled_rewards_are_the_same_in_one_generation_alone_after_a_kill_amid_a_step_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "{name: verified, rewards: [vowels], temperature: 1.0, samples: 2}"
    more = ("method=prge", "estimator.q=2", "estimator.eps=0.1", "train.eval_every=1", "split.dev=2", "split.test=2")
    both, alone = (given(tmp_path, kind, *more, f"evaluation.mode={mode}") for mode in ("both", "sequential"))
    outcome, journal = run(both)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    assert all(coef for event in journal if isinstance(event, Steps) for coefs in event.coefs for coef in coefs)
    assert measured(*run(alone)) == measured(outcome, journal)

    rewarded, calls = Workbench._rewarded, count(1)

    def killed(*args: Any) -> Any:
        if next(calls) == 8:  # dev, four points of step 1, dev, and the second point of step 2
            raise SystemExit
        return rewarded(*args)

    monkeypatch.setattr(Workbench, "_rewarded", killed)
    events = Events()
    with pytest.raises(SystemExit):
        run_trial(alone, events, [], 1, lambda: False)
    monkeypatch.undo()
    assert [event.last for event in events if isinstance(event, Steps)] == [1]
    assert measured(*run(alone, list(events), attempt=2)) == measured(outcome, journal)

    (test,) = (event for event in journal if isinstance(event, ScoredTest))
    with replayed(both, journal, test.step) as (_, space):
        assert test.step
        assert digest(space.params) == test.weights


def test_the_texts_of_a_prompt_and_their_noise_are_in_the_memory_that_a_trial_is_planned_with(tmp_path: Path) -> None:
    one = ("split.dev=1", "split.test=1", "train.batch=1", "model=demo")
    config = TrialConfig.of(given(tmp_path, "{name: verified, rewards: [exact]}", *one).config)
    model = status(config.model)
    assert model.arch is not None

    def planned(samples: int, temperature: float = 1.0, new: int = 450) -> int:
        kind = Verified((Exact(),), temperature, samples)
        task = replace(config.task, kind=kind, max_new_tokens=new)
        return memory_of(replace(config, task=task), model, None, 50, 1)[0]

    grown = {samples: planned(samples) - planned(samples, new=400) for samples in (1, 4, 20)}
    assert grown[4] == pytest.approx(4 * grown[1], rel=0.01)
    assert grown[20] == pytest.approx(8 * grown[1], rel=0.01), "eight texts share a batch"
    assert planned(1) - planned(1, temperature=0.0) == 4 * 8 * model.arch.vocabulary


SAMPLED = ("method=policy_gradient", "method.group=3", "update=sgd", "update.lr=0.5", "train.batch=2", "space=lora_fa")


def test_a_policy_gradient_s_step_is_that_of_autograd_over_texts_drawn_one_token_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """theta - lr g, g from full forwards of one text each, without a cache, and the mean of the others' rewards."""
    trial = given(tmp_path, "{name: verified, rewards: [vowels]}", *SAMPLED, "train.steps=1")
    took: list[dict[str, Any]] = []
    train = Backpropagation._train

    def before(self: Any, space: Any) -> Any:
        took.append({name: param.detach().clone() for name, param in space.params.items()})
        took.append(_gradient(self.bench, space))
        found = train(self, space)
        took.append({name: param.detach().clone() for name, param in space.params.items()})
        return found

    monkeypatch.setattr(Backpropagation, "_train", before)
    outcome, journal = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    start, (gradient, rewards), end = took
    assert any(value.any() for value in gradient.values())
    for name, value in start.items():
        torch.testing.assert_close(end[name], value - 0.5 * gradient[name], rtol=1e-4, atol=1e-6)
    (loss,) = (loss for event in journal if isinstance(event, Steps) for loss in event.losses)
    assert loss == pytest.approx(-sum(rewards) / len(rewards))


def _gradient(bench: Workbench, space: Any) -> Any:
    """The gradient of step 1 of a trial, and the rewards of its texts."""
    model, seed, group = bench.model, bench.config.seed, bench.config.method.kind.answers
    sampler, rewards, logprobs = Sampler(seed, 1, 1.0), [], []
    logits_of = lambda ids: model.head(model.hidden(torch.tensor([ids]))[0])
    for param in space.params.values():
        param.requires_grad_(True)
    for number, example in enumerate(bench.examples_of(1)):
        for row in range(number * group, (number + 1) * group):
            new: list[int] = []
            while len(new) < bench.splits.spec.max_new_tokens and not {*new} & {*model.stop_ids}:
                logits = logits_of([*example.prompt_ids, *new])[-1:].float().detach()
                new.append(int(sampler([row], len(new), logits).argmax()))
            places = logits_of([*example.prompt_ids, *new])[len(example.prompt_ids) - 1 : -1].float().log_softmax(-1)
            logprobs.append(sum(places[i, token] for i, token in enumerate(new)))
            text = [token for token in new if token not in model.stop_ids]
            rewards.append(vowels(model.tokenizer.decode(text, skip_special_tokens=True).strip()))
    objective = 0.0
    for i, reward in enumerate(rewards):
        first = i // group * group
        others = [rewards[j] for j in range(first, first + group) if j != i]
        objective = objective + (reward - sum(others) / len(others)) * logprobs[i]
    gradients = torch.autograd.grad(-objective / len(rewards), list(space.params.values()))
    return dict(zip(space.params, gradients, strict=True)), rewards


def test_the_best_of_n_texts_is_of_those_that_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spied(monkeypatch)
    kind, four = "{name: verified, rewards: [vowels]}", ("method=best_of_n", "method.n=4")
    trial = given(tmp_path, kind, *four)
    outcome, journal = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    dev, test = seen
    for split, (prompts, texts) in {"dev": dev, "test": test}.items():
        assert len(texts) == 3 * 4
        assert prompts[0] == prompts[3] != prompts[4]
        best = [max(texts[row : row + 4], key=vowels) for row in range(0, 12, 4)]
        assert vowels(best[0]) > min(map(vowels, texts[:4]))
        assert outcome.metrics[f"{split}/reward"] == pytest.approx(sum(map(vowels, best)) / 3)
        assert outcome.metrics[f"{split}/length"] == pytest.approx(sum(map(len, best)) / 3)
    assert measured(*run(trial)) == measured(outcome, journal)
    assert trial.trial_id != given(tmp_path, kind, *four, "grid.seeds=[4]").trial_id, "other texts"


def test_a_policy_gradient_that_is_killed_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "{name: verified, rewards: [vowels]}"
    trial = given(tmp_path, kind, *SAMPLED, "train.steps=3", "train.eval_every=1", "split.dev=2", "split.test=2")
    outcome, journal = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    assert len({loss for event in journal if isinstance(event, Steps) for loss in event.losses}) > 1
    rewarded, calls = Workbench._rewarded, count(1)

    def killed(*args: Any) -> Any:
        if next(calls) == 4:  # the texts of step 1, dev, those of step 2, and dev
            raise SystemExit
        return rewarded(*args)

    monkeypatch.setattr(Workbench, "_rewarded", killed)
    events = Events()
    with pytest.raises(SystemExit):
        run_trial(trial, events, [], 1, lambda: False)
    monkeypatch.undo()
    assert max(event.last for event in events if isinstance(event, Steps)) in (1, 2)
    assert measured(*run(trial, list(events), attempt=2)) == measured(outcome, journal)


def test_the_seconds_of_a_policy_gradient_s_step_have_its_texts_and_their_rewards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewarded = Workbench._rewarded

    def slow(*args: Any) -> Any:
        time.sleep(0.5)
        return rewarded(*args)

    monkeypatch.setattr(Workbench, "_rewarded", slow)
    _, journal = run(given(tmp_path, "{name: verified, rewards: [vowels]}", *SAMPLED))
    assert all(event.seconds >= 0.5 * len(event.losses) for event in journal if isinstance(event, Steps))


def test_the_texts_of_an_untrained_model_depend_on_no_seed_that_its_id_lacks(tmp_path: Path) -> None:
    kind = "{name: verified, rewards: [vowels], temperature: 1.0}"
    trials = [given(tmp_path, kind, "method=zero_shot", f"grid.seeds=[{seed}]") for seed in (3, 4)]
    assert trials[0].trial_id == trials[1].trial_id
    assert measured(*run(trials[0])) == measured(*run(trials[1]))


def vowels(text: str) -> float:
    return sum(one in "ae" for one in text) / max(len(text), 1)


def test_rewards_that_raise_fail_the_trial_or_count_as_zero(tmp_path: Path) -> None:
    kind = "{name: verified, rewards: [{name: vowels, fails: true}], errors: %s}"
    outcome, _ = run(given(tmp_path, kind % "fail"))
    assert outcome.state is TrialState.FAILED
    assert "its reward raised ValueError: " in outcome.error
    assert "\n" not in outcome.error
    outcome, _ = run(given(tmp_path, kind % "zero"))
    assert outcome.state is TrialState.SUCCEEDED, outcome.error
    assert outcome.metrics["test/reward"] == 0
    assert outcome.metrics["reward_errors"] == 2 * 2 * 3 + 3 + 3  # points of two steps, dev and test


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["task.kind=verified"], "a verified task needs a reward"),
        (["task.kind={name: verified, rewards: [exact], samples: 2}"], "kind.samples=2 texts of a prompt are all the"),
        (["task.metric=[{name: pass_at_k, k: 3}]"], "k=3, and the task has 1 texts per prompt"),
        (["task.metric=squad_f1"], "it is computed from texts, but a verified task predicts rewards"),
        (["train.objective=f1"], "f1.*it needs accepted answers, and the task has none"),
        (["task=demo_remarks"], "it needs rewards, and the task has none"),
        (["method=fo_full"], "train.objective=reward is not differentiable.*or method=policy_gradient"),
        (["method=policy_gradient", "train.objective=loss"], "trains on rewards of sampled answers: use train.obj"),
        (["method=policy_gradient", "method.group=1"], "method.group"),
        (["method=best_of_n", "task=demo_remarks"], "samples answers for their rewards, and the task has none"),
        (["method=policy_gradient", "space=codes", "precision=int8"], "backpropagation does not reach space 'codes'"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: list[str], why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=why):
        make(*SUMS, *FEW, *overrides)


def test_the_sums_are_each_once_and_right() -> None:
    from zo_sweeps.tasks import data

    folder = Path(data.__file__).parent / "sums"
    rows = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    assert {(row["a"], row["b"]) for row in rows} == {(a, b) for a in range(10) for b in range(10)}
    assert len(rows) == 100
    assert all(row["answer"] == str(row["a"] + row["b"]) for row in rows)
