"""Prompts of several texts: the tokens with which an example's texts begin alike stand in a row once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from zo_sweeps.engine.packing import SAVING

Text = tuple[int, ...]  # its tokens


class TextGroup(NamedTuple):
    """Texts (by index) that stand one after the other, all but the first without their first `prompt` tokens."""

    texts: list[int]
    prompt: int = 0


def groups(texts: Sequence[Text], examples: Sequence[int]) -> list[TextGroup]:
    """Return the texts of each example as a group if they share a prompt; every other text as one by itself.

    Args:
        examples: the example of each text.
    """
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
