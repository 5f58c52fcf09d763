"""Several short texts in one row of a batch, so that little of it is padding."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

# Attention costs the square of a row: at this length it is still small beside the linear layers of any model.
CAPACITY = 256
SAVING = 1 / 8  # of the padded tokens; for less, attention without a mask is worth more


def padded_to(length: int, multiple_of: int) -> int:
    return -(-length // multiple_of) * multiple_of


def pack(lengths: Sequence[int], multiple_of: int) -> list[list[int]]:
    """The texts (by index) that share each row, in the order in which they stand in it; [[0], [1], ...] to save little.

    As few rows as hold all texts, filled evenly: texts are taken from the longest on, each into the emptiest row. A row
    holds at most `CAPACITY` tokens, or the longest text. Deterministic: the lengths alone decide.

    Args:
        lengths: tokens of each text.
        multiple_of: rows are padded to the next multiple of it.
    """
    apart = [[text] for text in range(len(lengths))]
    capacity = max(CAPACITY, *lengths)
    for count in range(-(-sum(lengths) // capacity), len(lengths)):
        rows, tokens = _filled(lengths, count)
        if tokens <= capacity:
            padded = len(lengths) * padded_to(max(lengths), multiple_of)
            return rows if count * padded_to(tokens, multiple_of) <= (1 - SAVING) * padded else apart
    return apart


def _filled(lengths: Sequence[int], count: int) -> tuple[list[list[int]], int]:
    """`count` rows of texts, and the tokens of the fullest."""
    rows: list[list[int]] = [[] for _ in range(count)]
    used = [(0, row) for row in range(count)]
    for text in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        tokens, row = heapq.heappop(used)
        rows[row].append(text)
        heapq.heappush(used, (tokens + lengths[text], row))
    return rows, max(used)[0]
