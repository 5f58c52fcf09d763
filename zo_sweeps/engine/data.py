"""Which examples a step sees: a pure function of (seed, step), so that a run can go on anywhere."""

from __future__ import annotations

import random
from functools import lru_cache


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, size: int) -> tuple[int, ...]:
    order = list(range(size))
    random.Random(f"data/{seed}/{epoch}").shuffle(order)
    return tuple(order)


def indices(seed: int, step: int, size: int, batch: int) -> tuple[int, ...]:
    """The examples of step `step` (from 1): epochs in random order without replacement, the last partial batch kept."""
    batches = -(-size // batch)
    epoch, place = divmod(step - 1, batches)
    return _epoch(seed, epoch, size)[place * batch : (place + 1) * batch]
