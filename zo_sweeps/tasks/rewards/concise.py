"""A text as long as the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.reward import Reward


@dataclass(frozen=True)
class Concise(Reward):
    """-|c(text) - c(answer)|, c the number of characters. Source: ES at Scale (arXiv:2509.24372), conciseness."""

    examples = (({"answer": "Paris"}, "It is Paris", -6.0), ({"answer": "Paris"}, "Rome!", 0.0))

    column: str = option("answer", "column with the answer")

    def of(self, row: Mapping[str, Any], text: str) -> float:
        return -float(abs(len(text) - len(str(row[self.column]))))
