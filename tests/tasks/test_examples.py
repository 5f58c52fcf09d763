"""Metrics, objectives, task kinds and table layouts against the examples that they carry; wrong ones must fail."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from tests.engine import contract
from tests.tables.examples import measure, record, spec
from zo_sweeps.core.files import conf_dir
from zo_sweeps.engine.batch import Batch
from zo_sweeps.engine.objectives.tokens import Tokens
from zo_sweeps.methods import registry
from zo_sweeps.methods.metric import Metric, Metrics, Of, same_length
from zo_sweeps.methods.objective import Answers, Objective
from zo_sweeps.methods.reward import Reward
from zo_sweeps.methods.task import Dialect, Task
from zo_sweeps.methods.task_kind import KindExample, TaskKind
from zo_sweeps.tables import build, published
from zo_sweeps.tables.records import Measure
from zo_sweeps.tables.renderings import to_csv
from zo_sweeps.tasks.encode import encode
from zo_sweeps.tasks.kinds.classification import Classification
from zo_sweeps.tasks.kinds.generation import Generation
from zo_sweeps.tasks.kinds.regression import Regression
from zo_sweeps.tasks.kinds.verified import Verified
from zo_sweeps.tasks.metrics.accuracy import Accuracy
from zo_sweeps.tasks.metrics.perplexity import Perplexity
from zo_sweeps.tasks.rewards.exact import Exact
from zo_sweeps.tasks.spec import TaskSpec

pytestmark = pytest.mark.unit


# Checks


def check_metric(metric: Metric) -> None:
    assert metric.examples, f"{metric.name} has no examples"
    for predictions, references, score in metric.examples:
        assert metric.compute(predictions, references) == pytest.approx(score, rel=1e-9)
    assert any(score not in (0, 1) for *_, score in metric.examples), "no example has a score besides 0 and 1"
    draw = random.Random(3)
    guess, truth = ([draw.randrange(3) for _ in range(40)] for _ in range(2))
    if metric.of not in (Of.TEXTS, Of.REWARDS) and _differs(
        metric, guess, [number + (metric.of is Of.LOSSES) for number in truth]
    ):
        assert any(_differs(metric, *one[:2]) for one in metric.examples), (
            "no example tells references from predictions"
        )


def _differs(metric: Metric, predictions: Any, references: Any) -> bool:
    one = metric.compute(predictions, references)
    try:
        return one != pytest.approx(metric.compute(references, predictions), rel=1e-9)
    except ArithmeticError:  # zero tokens
        return True


def check_objective(objective: Objective) -> None:
    assert objective.examples, f"{objective.name} has no examples"
    for given, value in objective.examples:
        assert value, "an f of 0 tells nothing of its scale"
        assert len(given) > 1, "an example of one row does not tell a sum from a mean"
        if objective.generates:
            got = objective.of_texts(*given)
        else:
            batch = batch_of(given)
            flat = [p for answers in given for candidate in answers.logprobs for p in candidate]
            got = objective.loss(torch.tensor([flat, flat]), batch)
            assert len(got) == 2, "a value per point"
        assert got.tolist() == pytest.approx([value] * len(got), rel=1e-6)
    assert objective.generates or any(one.gold for given, _ in objective.examples for one in given), (
        "every example has the first candidate for its gold one"
    )


def batch_of(examples: Sequence[Answers]) -> Batch:
    """The parts of a batch that losses read; no text is behind them."""
    none, slots = torch.empty(0, dtype=torch.long), max(len(one.logprobs) for one in examples)
    every = [(row, slot, len(tokens)) for row, one in enumerate(examples) for slot, tokens in enumerate(one.logprobs)]
    gold = torch.tensor([one.gold for one in examples])
    return Batch(
        none, none, None, none, none, none, none,
        token_candidate=torch.tensor([i for i, (_, _, count) in enumerate(every) for _ in range(count)]),
        candidate_length=torch.tensor([float(count) for _, _, count in every]),
        candidate_slot=torch.tensor([row * slots + slot for row, slot, _ in every]),
        gold=gold, right=torch.nn.functional.one_hot(gold, slots).bool(), slots=slots,
    )  # fmt: skip


def check_kind(kind: TaskKind) -> None:
    assert kind.examples, f"{kind.name} has no examples"
    for one in kind.examples:
        rewarded = replace(kind, rewards=(Exact(),)) if isinstance(kind, Verified) else kind
        wording = Dialect(Tokens(), one.template, one.options, one.each)
        fields, new = tuple(name for name in one.row if name != "label"), 8 if kind.generates else 0
        task = Task(
            "t", "T", rewarded, Metrics([Perplexity()]), fields, "label", {"d": wording},
            labels=one.labels, max_new_tokens=new,
        )  # fmt: skip
        spec = TaskSpec.of(task, "d")
        made = encode(spec, one.row, letters, 1000)
        assert text_of(made.prompt_ids) == one.prompt
        assert tuple(text_of(each.ids[-each.answer_length :]) for each in made.candidates) == one.answers
        assert (made.gold, made.golds) == (one.gold, one.golds or (one.gold,))
        assert (made.references, made.value) == (one.references, one.value)
        if one.estimate is not None:
            assert kind.estimate(one.scores, spec.labels) == pytest.approx(one.estimate, rel=1e-9)
    assert kind.generates == any(one.references for one in kind.examples), "texts have accepted answers"
    assert (kind.predicts is Of.SCORES) == any(one.estimate is not None for one in kind.examples), (
        "no estimate is shown"
    )
    if not kind.generates:
        assert any(one.gold for one in kind.examples), "every example has the first option for its gold one"


def check_reward(reward: Reward) -> None:
    if reward.name in ("math_verify", "reasoning_gym"):
        pytest.importorskip(reward.name, reason="it comes with the extra [rewards]")
    for row, text, value in reward.examples:
        assert reward.of(row, text) == pytest.approx(value, rel=1e-9)
    assert len({value for *_, value in reward.examples}) > 1, f"{reward.name} needs examples with two rewards"


def letters(text: str, **options: Any) -> dict[str, list[int]]:
    """A tokenizer with a token per letter."""
    return {"input_ids": [ord(letter) for letter in text]}


def text_of(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def check_layout(layout: Measure) -> None:
    """A trial with these metrics has these cells, column by column, and that of `beside` after its own."""
    assert layout.example, f"the layout of {layout.metric} has no example"
    measures = [*map(layout.of_column, layout.columns)] or [layout]
    metrics = {name: float(value) for name, value in layout.example["trial"].items()}
    read = [
        name for one in measures for part in (one, one.beside) if part for name in (part.metric, part.minus) if name
    ]
    assert {*read} == {*metrics}, "the example has other metrics than the layout reads"
    assert len({*metrics.values()}) == len(metrics), "two metrics of the example are alike"
    assert 0 not in metrics.values(), "a metric of 0 tells nothing of its scale"
    shown: list[float] = []
    runs = [record(metrics=metrics)]
    rows: dict[str, Any] = {"rows": (("zo", "Ours"),)}
    for order, value in enumerate(layout.example.get("search", ())):
        runs.append(record({"update.lr": order}, metrics={layout.metric: value}))
    if layout.ratio or layout.paired:
        runs.append(record(block="other", metrics={**layout.example["over"]}))
        rows["over"] = {"zo": "other"}
    for one in measures:
        lines = csv.DictReader(io.StringIO(to_csv(build(spec(measure=one, **rows), runs))))
        shown += [float(line["mean"]) for line in lines if line["block"] == "zo" and line["mean"]]
    assert shown == pytest.approx([*layout.example["shows"]], rel=1e-9)


# Every member


@pytest.mark.parametrize("name", contract.names("metric"))
def test_a_metric_has_the_scores_of_its_examples(name: str) -> None:
    check_metric(contract.member("metric", name))


@pytest.mark.parametrize("name", contract.names("objective"))
def test_an_objective_has_the_values_of_its_examples(name: str) -> None:
    check_objective(contract.member("objective", name))


@pytest.mark.parametrize("name", contract.names("task_kind"))
def test_a_task_kind_encodes_the_rows_of_its_examples(name: str) -> None:
    check_kind(contract.member("task_kind", name))


@pytest.mark.parametrize("name", contract.names("reward"))
def test_a_reward_has_the_values_of_its_examples(name: str) -> None:
    check_reward(contract.member("reward", name))


FOLDERS = [conf_dir(), *registry.folders()]


@pytest.mark.parametrize("name", published.names("table", FOLDERS))
def test_a_layout_shows_the_cells_of_its_example(name: str) -> None:
    check_layout(Measure.from_mapping(published.read("table", name, FOLDERS), name))


# Wrong members


@dataclass(frozen=True)
class Precision(Metric):
    """Share of the predicted ones that are right."""

    examples = (([1, 1, 1, 0], [1, 0, 0, 0], 1 / 3),)

    def compute(self, predictions: Sequence[int], references: Sequence[int]) -> float:
        same_length(predictions, references)
        predicted = [g for p, g in zip(predictions, references, strict=True) if p == 1]
        return sum(g == 1 for g in predicted) / len(predicted)


@dataclass(frozen=True)
class Swapped(Precision):
    def compute(self, predictions: Sequence[int], references: Sequence[int]) -> float:
        return super().compute(references, predictions)


@dataclass(frozen=True)
class Alike(Precision):
    """Its example cannot tell the two lists apart."""

    examples = (([1, 1, 0], [1, 0, 1], 1 / 2),)


@dataclass(frozen=True)
class Percent(Accuracy):
    def compute(self, predictions: Sequence[int], references: Sequence[int]) -> float:
        return 100 * super().compute(predictions, references)


@dataclass(frozen=True)
class AllRight(Accuracy):
    examples = (([0, 1], [0, 1], 1.0),)


@dataclass(frozen=True)
class TokensOverLosses(Perplexity):
    def compute(self, predictions: Sequence[float], references: Sequence[int]) -> float:
        return super().compute(references, predictions)


@dataclass(frozen=True)
class Silent(Accuracy):
    examples = ()


@dataclass(frozen=True)
class Margin(Objective):
    """Mean of the second candidate's log p minus the first's."""

    total: bool = False
    examples = (((Answers(((-1.0,), (-3.0,)), 0), Answers(((-1.0,), (-2.0,)), 1)), -3 / 2),)

    def loss(self, logprobs: torch.Tensor, batch: Any) -> torch.Tensor:
        from zo_sweeps.engine.losses import candidate_scores

        scores = candidate_scores(logprobs, batch)
        each = scores[:, :, 1] - scores[:, :, 0]
        return each.sum(1) if self.total else each.mean(1)


@dataclass(frozen=True)
class FirstGold(Margin):
    """Its example does not tell the gold candidate from the first."""

    examples = (((Answers(((-1.0,), (-3.0,)), 0), Answers(((-1.0,), (-2.0,)), 0)), -3 / 2),)


@dataclass(frozen=True)
class Always(Exact):
    examples = (({"answer": "7"}, "7", 1.0), ({"answer": "8"}, "8", 1.0))


@dataclass(frozen=True)
class NextOption(Classification):
    def gold(self, label: Any, labels: Sequence[Any]) -> int:
        return (labels.index(label) + 1) % len(labels)


@dataclass(frozen=True)
class OneAnswer(Generation):
    """Accepts the first answer alone."""

    def references(self, label: Any) -> tuple[str, ...]:
        return tuple(label[:1])


@dataclass(frozen=True)
class Nearest(Regression):
    """Said to be a regression, and predicts the best option's value."""

    def estimate(self, scores: Sequence[float], labels: Sequence[Any]) -> float:
        return float(labels[max(range(len(scores)), key=scores.__getitem__)])


@dataclass(frozen=True)
class FirstAlone(Classification):
    examples = (KindExample({"label": 0}, "Wet?", (" No", " Yes"), "Wet?", (" No", " Yes"), gold=0),)


@dataclass(frozen=True)
class Unshown(TaskKind):
    """A kind without an example."""


WRONG: dict[str, tuple[Callable[[], None], str]] = {
    "arguments swapped": (lambda: check_metric(Swapped()), "assert"),
    "an example that does not tell": (lambda: check_metric(Alike()), "tells references from predictions"),
    "tokens over losses": (lambda: check_metric(TokensOverLosses()), "1.64"),
    "a score of 1 alone": (lambda: check_metric(AllRight()), "besides 0 and 1"),
    "percent": (lambda: check_metric(Percent()), "75"),
    "no example": (lambda: check_metric(Silent()), "test_examples has no examples"),
    "a reward for any text": (lambda: check_reward(Always()), "examples with two rewards"),
    "no example of a kind": (lambda: check_kind(Unshown()), "test_examples has no examples"),
    "a sum for a mean": (lambda: check_objective(Margin(total=True)), "-3.0"),
    "the first candidate alone": (lambda: check_objective(FirstGold()), "for its gold one"),
    "an accepted answer less": (lambda: check_kind(OneAnswer()), "'paris'"),
    "the next option": (lambda: check_kind(NextOption()), "2 != 1"),
    "another estimate": (lambda: check_kind(Nearest()), "1.25"),
    "another unit": (lambda: check_layout(replace(measure("memory_gb"), unit_size=2**30)), "1.39"),
    "difference the other way": (
        lambda: check_layout(
            replace(measure("memory_beyond_weights"), metric="weights_bytes", minus="peak_memory_bytes")
        ),
        "-2",
    ),
    "columns that change places": (lambda: check_layout(transposed(measure("memory_parts"))), "28.0"),
    "a column unseen": (lambda: check_layout(replace(measure("accuracy"), columns=PARTS)), "other metrics"),
    "no example of a layout": (lambda: check_layout(replace(measure("accuracy"), example={})), "has no example"),
    "one option alone": (lambda: check_kind(FirstAlone()), "the first option"),
}


PARTS = {"Test": "test/metric", "Dev": "dev/metric"}


def transposed(layout: Measure) -> Measure:
    return replace(layout, columns=dict(zip(layout.columns, reversed([*layout.columns.values()]), strict=True)))


def test_right_members_of_the_same_form_pass() -> None:
    check_metric(Precision())
    check_objective(Margin())


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_member_fails(what: str) -> None:
    check, message = WRONG[what]
    with pytest.raises(AssertionError, match=message):
        check()
