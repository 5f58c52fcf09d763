"""A model's answers -> the task's metrics: every metric against its definition, and each named as what it is."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from tests.tasks.common import load_task, spec_of, typed
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.definition import read
from zo_sweeps.methods.metric import Metric, Of
from zo_sweeps.methods.registry import members
from zo_sweeps.methods.task import Task
from zo_sweeps.tasks.encode import EncodedCandidate, EncodedExample, render
from zo_sweeps.tasks.kinds.regression import Regression
from zo_sweeps.tasks.scoring import ModelAnswers, cut, evaluate, right
from zo_sweeps.tasks.spec import TaskSpec

pytestmark = pytest.mark.unit

METRICS = members("metric")


def made(name: str, **options: Any) -> Metric:
    metric = METRICS[name](**options)
    assert isinstance(metric, Metric)
    return metric


def example(gold: int = 0, *, value: float | None = None, lengths: tuple[int, ...] = (1, 1)) -> EncodedExample:
    candidates = tuple(EncodedCandidate(tuple(range(length + 2)), length) for length in lengths)
    return EncodedExample(candidates, gold, (), (), "", (gold,), value)


def drawn(n: int = 200, labels: int = 2) -> tuple[list[int], list[int]]:
    chance = random.Random(n + labels)
    golds = [chance.randrange(labels) for _ in range(n)]
    return [g if chance.random() < 0.7 else chance.randrange(labels) for g in golds], golds


def counts(predictions: list[int], golds: list[int], label: int) -> tuple[int, int, int, int]:
    pairs = [(p == label, g == label) for p, g in zip(predictions, golds, strict=True)]
    return tuple(pairs.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False)))


@pytest.mark.parametrize("positive", [0, 1])
def test_f1_is_the_harmonic_mean_of_precision_and_recall_of_the_positive_label(positive: int) -> None:
    predictions, golds = drawn()
    tp, fp, fn, _ = counts(predictions, golds, positive)
    assert made("f1", positive=positive).compute(predictions, golds) == pytest.approx(2 * tp / (2 * tp + fp + fn))


def test_f1_of_a_label_that_never_occurs_is_0() -> None:
    assert made("f1").compute([0, 0], [0, 0]) == 0.0


def test_macro_f1_is_the_mean_over_the_labels() -> None:
    predictions, golds = drawn(labels=3)
    each = []
    for label in range(3):
        tp, fp, fn, _ = counts(predictions, golds, label)
        each.append(2 * tp / (2 * tp + fp + fn))
    assert made("f1_macro").compute(predictions, golds) == pytest.approx(sum(each) / 3)


def test_matthews_is_the_correlation_of_two_binary_lists() -> None:
    predictions, golds = drawn()
    tp, fp, fn, tn = counts(predictions, golds, 1)
    expected = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert made("matthews").compute(predictions, golds) == pytest.approx(expected)
    assert made("matthews").compute([1] * len(golds), golds) == 0.0


def test_pearson_is_covariance_over_both_deviations_and_spearman_the_same_of_ranks() -> None:
    chance = random.Random(3)
    x = [chance.random() for _ in range(40)]
    y = [math.exp(5 * v) + chance.random() for v in x]

    def correlation(a: list[float], b: list[float]) -> float:
        ma, mb = sum(a) / len(a), sum(b) / len(b)
        top = sum((p - ma) * (q - mb) for p, q in zip(a, b, strict=True))
        return top / math.sqrt(sum((p - ma) ** 2 for p in a) * sum((q - mb) ** 2 for q in b))

    ranks = [[sorted(values).index(v) for v in values] for values in (x, y)]
    assert made("pearson").compute(x, y) == pytest.approx(correlation(x, y))
    assert made("spearman").compute(x, y) == pytest.approx(correlation(*ranks))


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_a_correlation_with_a_constant_is_0(name: str) -> None:
    assert made(name).compute([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == 0.0
    assert made(name).compute([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]) == 0.0


def test_exact_match_compares_words_with_every_accepted_answer() -> None:
    got = made("exact_match").compute(["The cat!", "a dog", "bird"], [["Cat"], ["cat", "dog"], ["fish"]])
    assert got == pytest.approx(2 / 3)


def test_perplexity_is_the_inverse_geometric_mean_of_the_right_tokens_probabilities() -> None:
    spec = spec_of({**load_task("sst2"), "metric": "perplexity"}, "mezo")
    examples = [example(0, lengths=(1, 2)), example(1, lengths=(1, 3))]
    scores = [[math.log(0.5), math.log(0.9)], [math.log(0.9), math.log(0.25)]]  # means per token
    got = evaluate(spec, examples, ModelAnswers([0, 0], scores))["perplexity"]
    assert got == pytest.approx((0.5 * 0.25**3) ** (-1 / 4))


@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_metric_says_what_it_is_and_refuses_lists_of_unlike_lengths(name: str) -> None:
    metric = made(name)
    assert metric.display
    assert (metric.unit, metric.unit_size) in (("%", 0.01), ("", 1.0))
    one = {Of.TEXTS: "a", Of.LABELS: 0, Of.SCORES: 0.5, Of.LOSSES: 0.5, Of.REWARDS: [0.5]}[metric.of]
    for predictions, references in (([], []), ([one], []), ([one], [one, one])):
        with pytest.raises(ValueError, match="predictions for"):
            metric.compute(predictions, references)


def test_f1_of_a_classification_task_is_f1_and_not_accuracy() -> None:
    spec = spec_of({**load_task("mrpc"), "metric": "f1"}, "prge")
    examples = [example(gold) for gold in (1, 1, 1, 0)]
    answers = ModelAnswers([1, 0, 0, 0], [[0.0, 0.0]] * 4)
    assert evaluate(spec, examples, answers) == {"f1": pytest.approx(0.5)}  # accuracy is 0.5 of other rows
    assert evaluate(spec, examples, ModelAnswers([1, 1, 1, 1], [[0.0, 0.0]] * 4)) == {"f1": pytest.approx(6 / 7)}


def test_every_metric_of_a_task_is_computed_the_first_one_first() -> None:
    metrics = [{"name": "f1", "positive": 0}, "accuracy", "matthews", "perplexity"]
    spec = spec_of({**load_task("mrpc"), "metric": metrics}, "prge")
    predictions, golds = drawn(40)
    got = evaluate(spec, [example(gold) for gold in golds], ModelAnswers(predictions, [[-1.0, -1.0]] * 40))
    assert list(got) == ["f1", "accuracy", "matthews", "perplexity"]
    tp, fp, fn, tn = counts(predictions, golds, 0)
    assert got["f1"] == pytest.approx(2 * tp / (2 * tp + fp + fn))
    assert got["accuracy"] == (tp + tn) / 40
    assert got["perplexity"] == pytest.approx(math.e)


def test_scores_that_are_not_finite_give_metrics_that_are_not() -> None:
    spec = spec_of({**load_task("sst2"), "metric": ["accuracy", "matthews"]}, "mezo")
    got = evaluate(spec, [example()], ModelAnswers([0], [[math.nan, 0.0]]))
    assert list(got) == ["accuracy", "matthews"]
    assert all(map(math.isnan, got.values()))


@pytest.mark.parametrize(
    ("task", "metric", "message"),
    [
        ("squad", "f1", "metric 'f1' does not fit: it is computed from labels, but a generation task predicts texts"),
        ("sst2", "squad_f1", "'squad_f1' does not fit: it is computed from texts"),
        ("cb", "f1", "'f1' does not fit: it needs exactly two labels; use f1_macro"),
        ("copa", "matthews", "'matthews' does not fit: it needs the same labels in every row"),
    ],
)
def test_a_metric_that_cannot_be_computed_is_refused(task: str, metric: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec_of({**load_task(task), "metric": metric}, "mezo")


@pytest.mark.parametrize("name", ["loss", "metric"])
def test_a_metric_is_not_named_as_what_every_task_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METRICS["accuracy"], "name", name)
    with pytest.raises(UserError, match=f"cannot be called '{name}'"):
        typed({**load_task("sst2"), "metric": "accuracy"})


@pytest.mark.parametrize(
    ("text", "stop", "kept"),
    [
        ("Paris. It is", ".", "Paris"),
        ("Paris", ".", "Paris"),
        (" a END b END c", "END", "a"),
        (". no", ".", ""),
        ("a. b", "", "a. b"),
    ],
)
def test_an_answer_ends_at_the_first_stop(text: str, stop: str, kept: str) -> None:
    assert cut(text, stop) == kept


STSB: dict[str, Any] = {
    "name": "stsb",
    "display": "STS-B",
    "kind": "regression",
    "metric": ["pearson", "spearman"],
    "fields": ["one", "two"],
    "label_field": "score",
    "labels": [0, 1, 2.5, 5],
    "dialects": {
        "m": {"loss": "candidates", "template": "{{ one }} {{ two }}", "options": [" no", " bit", " half", " yes"]}
    },
}


def spec(**changes: Any) -> TaskSpec:
    return TaskSpec.of(read(Task, {**STSB, **changes}, "task"), "m")


def test_a_prediction_is_right_if_it_is_a_right_option_or_has_an_accepted_answers_words() -> None:
    none = [[0.0, 0.0]] * 3
    several = EncodedExample((), 2, (), (), "", (0, 2))
    options = [example(0), example(1), several]
    assert right(spec_of(load_task("sst2"), "mezo"), options, ModelAnswers([0, 0, 0], none)) == [True, False, True]
    texts = [EncodedExample((), 0, answers, (), "") for answers in (("The cat", "a dog"), ("no",), ("yes", "no"))]
    assert right(spec_of(load_task("squad"), "mezo"), texts, ModelAnswers([0] * 3, none, ["cat!", "nope", "No."])) == [
        True,
        False,
        True,
    ]
    assert right(spec(), [example(value=1.0)], ModelAnswers([0], [[0.0, 0.0]])) == []


def test_a_regression_trains_the_option_whose_value_is_nearest_and_keeps_the_number() -> None:
    prompts = [render(spec(), {"one": "a", "two": "b", "score": score}) for score in (0.4, 0.5, 3.7, 3.8, 9, -1)]
    assert [prompt.gold for prompt in prompts] == [0, 0, 2, 3, 3, 0]
    assert [prompt.value for prompt in prompts] == [0.4, 0.5, 3.7, 3.8, 9.0, -1.0]


def test_a_regression_predicts_the_expected_value_over_its_options() -> None:
    scores = [-1.0, -2.0, -0.5, -4.0]
    weights = [math.exp(s) for s in scores]
    expected = sum(w * v for w, v in zip(weights, STSB["labels"], strict=True)) / sum(weights)
    assert Regression().estimate(scores, STSB["labels"]) == pytest.approx(expected)
    assert Regression().estimate([-5e3, -1e4], [1, 2]) == 1.0, "no underflow"


def test_a_regression_is_scored_by_correlations_of_its_estimates() -> None:
    rows = [(0.0, [0.0, -9, -9, -9]), (2.4, [-9, -9, 0.0, -9]), (4.9, [-9, -9, -9, 0.0]), (1.2, [-9, 0.0, -9, -9])]
    examples = [example(value=value, lengths=(1, 1, 1, 1)) for value, _ in rows]
    got = evaluate(spec(), examples, ModelAnswers([0] * 4, [scores for _, scores in rows]))
    assert got["pearson"] == pytest.approx(1, abs=1e-2)
    assert got["spearman"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": [0, 1, "two", 3]}, "label 'two' of a regression is not a number"),
        ({"labels": []}, ""),
        ({"metric": "accuracy"}, "'accuracy' does not fit: it is computed from labels"),
        ({"labels": [0, 1]}, "4 options and 2 labels"),
    ],
)
def test_a_regression_has_a_number_for_each_option(changes: dict[str, Any], message: str) -> None:
    if not message:
        assert spec(**changes).labels == (0, 1, 2, 3)
        return
    with pytest.raises(UserError, match=message):
        spec(**changes)


@pytest.mark.parametrize("label", ["3", None, True, math.inf, [1]])
def test_a_regression_row_without_a_number_is_refused(label: Any) -> None:
    with pytest.raises(UserError, match=r"is not a finite number|is null"):
        render(spec(), {"one": "a", "two": "b", "score": label})
