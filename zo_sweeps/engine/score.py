"""Loss and predictions over a split, in forwards of bounded size."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zo_sweeps.engine.batch import Example, collate
from zo_sweeps.engine.losses import Loss, candidate_scores, token_logprobs
from zo_sweeps.engine.types import LanguageModel


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
) -> tuple[float, list[int]]:
    """(mean loss over the examples, predicted candidate of each: the highest mean log-probability a token).

    Examples are taken in order of length, so that little is padded; the mean weighs examples equally.
    With `gold_only` the right answers alone are forwarded and the predictions are all 0.
    """

    def rows(i: int) -> int:
        return 1 if gold_only else len({tuple(c.ids[:-1]) for c in examples[i].candidates})

    def longest(i: int) -> int:
        return max(len(c.ids) for c in examples[i].candidates)

    order = sorted(range(len(examples)), key=lambda i: (longest(i), i))
    predictions = [0] * len(examples)
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
        best = candidate_scores(logprobs, batch)[0].argmax(dim=1).tolist()
        for i, choice in zip(chunk, best, strict=True):
            predictions[i] = choice
        start = stop
    return total / len(examples), predictions
