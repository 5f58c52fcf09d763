"""Scoring: a model's answers to the rows of a split -> the task's metrics, by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zo_sweeps.methods.metric import Of
from zo_sweeps.methods.reward import PASS
from zo_sweeps.tasks.encode import EncodedExample
from zo_sweeps.tasks.metrics.squad_f1 import words
from zo_sweeps.tasks.spec import TaskSpec


@dataclass(frozen=True)
class ModelAnswers:
    """A model's answers, in the order of the rows."""

    choices: Sequence[int]  # index of each row's best candidate
    # mean log-probability per answer token of each row's candidates (of the right one alone, if the task generates)
    scores: Sequence[Sequence[float]]
    texts: Sequence[str] = ()  # generated, cut at the task's stop; of rewarded ones, each row's in turn
    rewards: Sequence[Sequence[float]] = ()  # of each row's texts, if they are rewarded


def evaluate(spec: TaskSpec, examples: Sequence[EncodedExample], answers: ModelAnswers) -> dict[str, float]:
    """Return the value of each of the task's metrics, the first one first.

    All are NaN if a score is: the weights have diverged, and no metric is computed. Cost: a second, once per process,
    to import scikit-learn or scipy for the metrics that need it.
    """
    if any(math.isnan(score) for scores in answers.scores for score in scores):
        return {metric.name: math.nan for metric in spec.metrics}
    return {metric.name: metric.compute(*compared(metric.of, spec, examples, answers)) for metric in spec.metrics}


def compared(
    of: Of, spec: TaskSpec, examples: Sequence[EncodedExample], answers: ModelAnswers
) -> tuple[list[Any], list[Any]]:
    """Return the (predictions, references) that a metric of this sort compares."""
    if of is Of.TEXTS:
        return list(answers.texts), [example.references for example in examples]
    if of is Of.REWARDS:
        samples = spec.kind.samples
        rows = range(0, len(answers.texts), samples)
        return list(answers.rewards), [list(answers.texts[row : row + samples]) for row in rows]
    if of is Of.SCORES:
        estimates = [spec.kind.estimate(scores[: len(spec.labels)], spec.labels) for scores in answers.scores]
        return estimates, [example.value for example in examples]
    if of is Of.LOSSES:
        right = [0 if spec.kind.generates else example.gold for example in examples]
        tokens = [example.candidates[example.gold].answer_length for example in examples]
        scored = zip(answers.scores, right, tokens, strict=True)
        return [-scores[gold] * count for scores, gold, count in scored], tokens
    # any of several right candidates counts
    golds = [p if p in example.golds else example.gold for p, example in zip(answers.choices, examples, strict=True)]
    return list(answers.choices), golds


def right(spec: TaskSpec, examples: Sequence[EncodedExample], answers: ModelAnswers) -> list[bool]:
    """Return whether each prediction is right: one of the right options, or the words of an accepted answer.

    [] for a task that predicts numbers. Of rewarded texts, the first of a row passes.
    """
    predicts = spec.kind.predicts
    if predicts is Of.TEXTS:
        accepted = ([words(reference) for reference in example.references] for example in examples)
        return [words(text) in one for text, one in zip(answers.texts, accepted, strict=True)]
    if predicts is Of.REWARDS:
        return [rewards[0] >= PASS for rewards in answers.rewards]
    if predicts is Of.LABELS:
        return [p == e.gold or p in e.golds for p, e in zip(answers.choices, examples, strict=True)]
    return []


def leads(answers: ModelAnswers) -> list[float]:
    """Return by how much each row's best candidate leads the next, in nats per token; [] where none are compared."""
    ranked = [sorted(scores, reverse=True)[:2] for scores in answers.scores]
    return [first[0] - first[1] for first in ranked] if all(len(first) > 1 for first in ranked) else []


def cut(text: str, stop: str) -> str:
    """Return a generated answer up to the task's stop, if there is one, stripped."""
    return (text.partition(stop)[0] if stop else text).strip()
