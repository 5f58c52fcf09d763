"""Loss and predictions over a split, in forwards of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from zo_sweeps.engine.batch import Example, collate
from zo_sweeps.engine.losses import candidate_scores, token_logprobs
from zo_sweeps.engine.packing import grouped, shared_tokens
from zo_sweeps.engine.types import LanguageModel
from zo_sweeps.methods.evaluation import SCORED_TOKENS
from zo_sweeps.methods.objective import Objective


class Scored(NamedTuple):
    """A split's loss, and for every example the index of the best candidate and all candidates' scores.

    A candidate's score is the mean log-probability of its answer tokens; ties go to the first.
    """

    loss: float
    choices: list[int]
    scores: list[list[float]]


def forwards(
    examples: Sequence[Example], gold_only: bool, tokens_per_forward: int = SCORED_TOKENS, *, shared: bool = False
) -> list[list[int]]:
    """Return the indices of the examples that each forward holds; see `packing.grouped`."""
    return grouped([_size(example, gold_only, shared) for example in examples], tokens_per_forward)


def _size(example: Example, gold_only: bool, shared: bool) -> tuple[int, int]:
    """Return an example's rows, and the tokens of the longest."""
    longest = max(len(candidate.ids) for candidate in example.candidates)
    if gold_only:
        return 1, longest
    texts = list({tuple(candidate.ids[:-1]) for candidate in example.candidates})
    prompt = shared_tokens(texts) if shared else 0
    return (1, sum(map(len, texts)) - (len(texts) - 1) * prompt + 1) if prompt else (len(texts), longest)


@torch.inference_mode()
def score(
    model: LanguageModel,
    examples: Sequence[Example],
    pad_id: int,
    objective: Objective,
    device: torch.device,
    *,
    gold_only: bool = False,
    shared: bool = False,
    tokens_per_forward: int = SCORED_TOKENS,
) -> Scored:
    """Score the examples.

    The loss is the objective of all examples as one batch (see `zo_sweeps.methods.objective`): the terms of every
    forward are summed and divided by their number, so that `tokens_per_forward` changes it by rounding only. Examples
    are sorted by length to reduce padding. With `gold_only` only the right answers are forwarded: every example then
    has one score, and its choice is 0. With `shared` an example's prompt is forwarded once for all its candidates (see
    `collate`), which changes scores by rounding only.
    """

    choices = [0] * len(examples)
    scores: list[list[float]] = [[] for _ in examples]
    total, terms = 0.0, 0
    for chunk in forwards(examples, gold_only, tokens_per_forward, shared=shared):
        batch = collate([examples[i] for i in chunk], pad_id, gold_only=gold_only, shared=shared).to(device)
        logprobs = token_logprobs(model, batch)
        count = objective.terms(batch)
        total, terms = total + float(objective.loss(logprobs, batch)[0]) * count, terms + count
        each = candidate_scores(logprobs, batch)[0]
        for i, choice, row in zip(chunk, each.argmax(dim=1).tolist(), each.tolist(), strict=True):
            choices[i], scores[i] = choice, row if gold_only else row[: len(examples[i].candidates)]
    return Scored(total / terms, choices, scores)
