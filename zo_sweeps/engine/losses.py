"""The losses: from the answer tokens' log-probabilities to one loss per point.

Shapes: P points, K answer tokens, C candidates, B examples (see batch.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from zo_sweeps.core.memory_parts import Part, continue_as, counted_as
from zo_sweeps.engine.batch import Batch
from zo_sweeps.engine.types import LanguageModel

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

    Args:
        places: [P, U, D] last hidden states, of which `token_place` [K] tells the one that predicts each token.
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
