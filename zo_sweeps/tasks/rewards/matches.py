"""A text of the right form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.reward import Reward


@dataclass(frozen=True)
class Matches(Reward):
    """1 if the whole text, stripped, matches a regular expression (`.` also matches newlines), otherwise 0."""

    examples = (
        ({}, "<think>3 and 4\nare 7</think>\n<answer>7</answer>", 1.0),
        ({}, "So: <think>7</think> <answer>7</answer>", 0.0),
    )

    pattern: str = option(r"<think>.*</think>\s*<answer>.*</answer>", "the regular expression, as of Python's `re`")

    def of(self, row: Mapping[str, Any], text: str) -> float:
        return float(re.fullmatch(self.pattern, text.strip(), re.DOTALL) is not None)
