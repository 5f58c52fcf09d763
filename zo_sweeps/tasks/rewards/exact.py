"""The right answer, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.reward import Reward


@dataclass(frozen=True)
class Exact(Reward):
    """1 if the text, stripped, is the row's answer, otherwise 0."""

    examples = (({"answer": "7"}, " 7\n", 1.0), ({"answer": 7}, "7", 1.0), ({"answer": "7"}, "It is 7", 0.0))

    column: str = option("answer", "column with the answer")

    def of(self, row: Mapping[str, Any], text: str) -> float:
        return float(text.strip() == str(row[self.column]).strip())
