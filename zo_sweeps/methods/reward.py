"""The axis `reward`: how good a text is that was generated for a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.methods.definition import Definition, option

PASS = 1.0 - 1e-9  # a text passes if its reward is 1 or more, up to the rounding of a weighted sum


@dataclass(frozen=True)
class Reward(Definition):
    """A reward of texts. That of a task with several is the sum of weight * reward."""

    axis: ClassVar[str] = "reward"
    bare: ClassVar[bool] = True
    needs: ClassVar[str] = ""  # distribution that `of` imports, of the extra [rewards]
    # (row, text, reward), worked out by hand: what the contract tests hold `of` to, options at their defaults. At least
    # two, with two rewards. The first is also computed before a trial's first text, so that imports are not timed.
    examples: ClassVar[tuple[tuple[Mapping[str, Any], str, float], ...]] = ()

    weight: float = option(1.0, "factor of this reward in the task's")

    def of(self, row: Mapping[str, Any], text: str) -> float:
        """Return the reward of a text, without `weight`.

        It runs in a process of its own, which is killed if it takes too long; whatever it raises is the trial's error
        or counts as 0, as the task says.

        Args:
            row: the columns that the task reads, its label's included.
            text: generated, without the tokens that ended it.
        """
        raise NotImplementedError
