"""Loss and predictions over a split, in forwards of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from zo_sweeps.engine.batch import Example, collate
from zo_sweeps.engine.losses import Loss, candidate_scores, token_logprobs
from zo_sweeps.engine.types import LanguageModel


class Scored(NamedTuple):
    """A split's mean loss, and for every example the index of the best candidate and all candidates' scores.

    A candidate's score is the mean log-probability of its answer tokens; ties go to the first.
    """

    loss: float
    choices: list[int]
    scores: list[list[float]]


@torch.inference_mode()
def score(
    model: LanguageModel,
    examples: Sequence[Example],
    pad_id: int,
    loss: Loss,
    device: torch.device,
    *,
    gold_only: bool = False,
    tokens_per_forward: int = 8192,
) -> Scored:
    """Score the examples.

    Examples are sorted by length to reduce padding; the mean weighs them equally. With `gold_only` only the right
    answers are forwarded: every example then has one score, and its choice is 0.
    """

    def rows(i: int) -> int:
        return 1 if gold_only else len({tuple(c.ids[:-1]) for c in examples[i].candidates})

    def longest(i: int) -> int:
        return max(len(c.ids) for c in examples[i].candidates)

    order = sorted(range(len(examples)), key=lambda i: (longest(i), i))
    choices = [0] * len(examples)
    scores: list[list[float]] = [[] for _ in examples]
    total = 0.0
    start = 0
    while start < len(order):
        stop, used = start, 0
        while stop < len(order):
            used += rows(order[stop])
            if stop > start and used * longest(order[stop]) > tokens_per_forward:
                break
            stop += 1
        chunk = order[start:stop]
        batch = collate([examples[i] for i in chunk], pad_id, gold_only=gold_only).to(device)
        logprobs = token_logprobs(model, batch)
        total += float(loss(logprobs, batch)[0]) * len(chunk)
        each = candidate_scores(logprobs, batch)[0]
        for i, choice, row in zip(chunk, each.argmax(dim=1).tolist(), each.tolist(), strict=True):
            choices[i], scores[i] = choice, row if gold_only else row[: len(examples[i].candidates)]
        start = stop
    return Scored(total / len(examples), choices, scores)
