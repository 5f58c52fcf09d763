"""The losses: from the answer tokens' log-probabilities to one loss per point; and the score of a whole split.

Shapes: P points, K answer tokens, C candidates, B examples (see batch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from zo_sweeps.core.memory_parts import Part, continue_as, counted_as
from zo_sweeps.engine.batch import Batch, Example, collate
from zo_sweeps.engine.packing import grouped, shared_tokens
from zo_sweeps.engine.types import LanguageModel
from zo_sweeps.methods.evaluation import SCORED_TOKENS
from zo_sweeps.methods.objective import Objective

Loss = Callable[[Tensor, Batch], Tensor]


def token_logprobs(model: LanguageModel, batch: Batch, copies: int = 1) -> Tensor:
    """Return log p(answer token | prefix) over the full vocabulary, [P, K] fp32, for P = `copies` row groups.

    Cost: one forward of P*N rows; the head at the P*U places of the batch, in at most 8 bytes per logit: fp32 logits,
    and as many exponentials for their sum.
    """
    ids, mask, positions = batch.input_ids, batch.attention_mask, batch.positions
    if copies > 1:
        ids, mask = ids.repeat(copies, 1), mask.repeat(copies, 1)
        positions = None if positions is None else positions.repeat(copies, 1)
    with counted_as(Part.ACTIVATIONS):
        hidden = model.hidden(ids, mask, positions)
        hidden = hidden.view(copies, batch.input_ids.shape[0], *hidden.shape[1:])
        places = hidden[:, batch.place_row, batch.place_column]  # [P, U, D]
    if places.requires_grad:  # backward, what follows its gradient is no longer the logits'
        places.register_hook(lambda _: continue_as(Part.ACTIVATIONS))
    return logprobs_at(model, places, batch.token_place, batch.token_id)


def logprobs_at(model: LanguageModel, places: Tensor, token_place: Tensor, token_id: Tensor) -> Tensor:
    """Return log p of K tokens over the full vocabulary, [P, K] fp32.

    `places` are the last hidden states [P, U, D], of which `token_place` [K] tells the one that predicts each token.
    """
    with counted_as(Part.LOGITS):
        logits = model.head(places.flatten(0, 1)).float().view(*places.shape[:2], -1)
        normaliser = torch.logsumexp(logits, dim=-1)  # [P, U]
        return logits[:, token_place, token_id] - normaliser[:, token_place]


def candidate_scores(logprobs: Tensor, batch: Batch) -> Tensor:
    """Return the mean log-probability of each candidate's answer tokens, [P, B, slots]; empty slots are -inf."""
    P = logprobs.shape[0]
    sums = logprobs.new_zeros(P, len(batch.candidate_length)).index_add(1, batch.token_candidate, logprobs)
    scores = logprobs.new_full((P, batch.examples * batch.slots), float("-inf"))
    scores = scores.index_copy(1, batch.candidate_slot, sums / batch.candidate_length)
    return scores.view(P, batch.examples, batch.slots)


def is_gold(batch: Batch) -> Tensor:
    """Tell which answer tokens belong to their example's gold candidate, [K]."""
    owner = batch.candidate_slot[batch.token_candidate]
    gold_slot = torch.arange(batch.examples, device=owner.device) * batch.slots + batch.gold
    return torch.isin(owner, gold_slot)


def tokens(logprobs: Tensor, batch: Batch) -> Tensor:
    """Return -mean of log p over all gold answer tokens of the batch, [P]. P-RGE: loss over the entire vocabulary."""
    return -logprobs[:, is_gold(batch)].mean(dim=1)


def candidates(logprobs: Tensor, batch: Batch) -> Tensor:
    """Return the cross-entropy over candidates scored by mean log-probability, mean over examples, [P]. MeZO."""
    scores = candidate_scores(logprobs, batch)
    return cross_entropy(scores, batch.gold.expand(scores.shape[0], -1)).mean(dim=1)


def cross_entropy(scores: Tensor, gold: Tensor) -> Tensor:
    """Return -log softmax(scores)[gold] of [P, B, slots] scores and [P, B] gold slots, [P, B]."""
    return -scores.log_softmax(dim=2).gather(2, gold.unsqueeze(2)).squeeze(2)


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
