"""Sentences that differ in a few words only, told once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALIKE = 0.6  # share of the words in which two sentences must agree


@dataclass
class Group:
    """Sentences of one pattern.

    Args:
        texts: the sentences.
        holds: the things that any of them holds for, in order.
    """

    texts: list[str]
    holds: list[str]

    @property
    def text(self) -> str:
        """The first of the sentences, which stands for all."""
        return self.texts[0]

    @property
    def others(self) -> list[str]:
        """Of each further sentence, the first word that differs."""
        first = self.text.split()
        return [
            next(word for word, own in zip(text.split(), first, strict=True) if word != own).strip(",;:()")
            for text in self.texts[1:]
        ]


def each(lines: Mapping[str, Sequence[str]]) -> list[Group]:
    """Return every sentence, with the things that it holds for, as a group of its own."""
    return [Group([text], list(holds)) for text, holds in lines.items()]


def grouped(lines: Mapping[str, Sequence[str]]) -> list[Group]:
    """Return sentences, with the things that each holds for, as groups of one pattern, in the order of the first."""
    groups: list[Group] = []
    for text, holds in lines.items():
        group = next((one for one in groups if _alike(one.text.split(), text.split())), None)
        if group is None:
            groups.append(Group([text], list(holds)))
        else:
            group.texts.append(text)
            group.holds += [one for one in holds if one not in group.holds]
    return groups


def _alike(one: Sequence[str], other: Sequence[str]) -> bool:
    return len(one) == len(other) and sum(map(str.__eq__, one, other)) >= ALIKE * len(one)
