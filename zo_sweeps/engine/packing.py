"""Packing: several short texts in one row, an example's shared prompt once; and the examples of a forward."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

# Attention is quadratic in the row length; at this length it is still cheap compared with any model's linear layers.
CAPACITY = 256
MULTIPLE = 8  # row lengths are rounded up to a multiple of it
SAVING = 1 / 8  # share of padded tokens; below it, attention without a mask is faster
Text = tuple[int, ...]  # its tokens


def padded_to(length: int, multiple_of: int) -> int:
    """Round a length up to a multiple."""
    return -(-length // multiple_of) * multiple_of


def pack(lengths: Sequence[int], multiple_of: int) -> list[list[int]]:
    """Return the texts (by index) of each row, in order; one text per row if packing would save too little.

    Uses as few rows as hold all texts, filled evenly: longest text first, each into the emptiest row. A row holds at
    most `CAPACITY` tokens, or the longest text; its length is rounded up. Deterministic: depends on the lengths only.
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
    """Fill `count` rows; return their texts, and the number of tokens in the fullest row."""
    rows: list[list[int]] = [[] for _ in range(count)]
    used = [(0, row) for row in range(count)]
    for text in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        tokens, row = heapq.heappop(used)
        rows[row].append(text)
        heapq.heappush(used, (tokens + lengths[text], row))
    return rows, max(used)[0]


def grouped(sizes: Sequence[tuple[int, int]], tokens: int) -> list[list[int]]:
    """Return the examples (by index) of each forward: by length, to reduce padding.

    `sizes` are the texts of each example, and the tokens of the longest; a forward has at most `tokens`, as texts times
    the longest, or one example of more.
    """
    groups: list[list[int]] = []
    used = 0
    for i in sorted(range(len(sizes)), key=lambda i: (sizes[i][1], i)):
        texts, longest = sizes[i]
        used += texts
        if not groups or used * longest > tokens:
            groups.append([])
            used = texts
        groups[-1].append(i)
    return groups


class TextGroup(NamedTuple):
    """Texts (by index) that stand one after the other, all but the first without their first `prompt` tokens."""

    texts: list[int]
    prompt: int = 0


def groups(texts: Sequence[Text], examples: Sequence[int]) -> list[TextGroup]:
    """Return the texts of each example (`examples`, of each text) as a group if they share a prompt; others alone."""
    of_example: dict[int, list[int]] = {}
    for text, example in enumerate(examples):
        of_example.setdefault(example, []).append(text)
    made: list[TextGroup] = []
    for members in of_example.values():
        prompt = shared_tokens([texts[text] for text in members])
        made += [TextGroup(members, prompt)] if prompt else [TextGroup([text]) for text in members]
    return made


def shared_tokens(texts: Sequence[Text]) -> int:
    """Return how many tokens the texts begin with in common; 0 if sharing them would save too little."""
    first, last = min(texts), max(texts)  # in lexicographic order: what these share, all do
    ends = min(len(first), len(last))
    common = next((i for i in range(ends) if first[i] != last[i]), ends)
    return common if (len(texts) - 1) * common >= SAVING * sum(map(len, texts)) else 0
