"""Sampling of minibatches: a pure function of (seed, step), so that a run can resume anywhere."""

from __future__ import annotations

import random
from functools import lru_cache


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, size: int) -> tuple[int, ...]:
    order = list(range(size))
    random.Random(f"data/{seed}/{epoch}").shuffle(order)
    return tuple(order)


def indices(seed: int, step: int, size: int, batch: int) -> tuple[int, ...]:
    """Return the examples of step `step` (from 1): shuffled epochs without replacement, last partial batch kept."""
    batches = -(-size // batch)
    epoch, place = divmod(step - 1, batches)
    return _epoch(seed, epoch, size)[place * batch : (place + 1) * batch]
