"""Timed generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.kind import Kind


@dataclass(frozen=True)
class Generate(Kind):
    """Timing of a text's continuation, greedy or sampled, with theta merged into the weights or multiplied separately.

    Raises UserError without a text.
    """

    runner: ClassVar[str] = "zo_sweeps.run.runner:TimedGeneration"
    generates: ClassVar[bool] = True
    causal_only: ClassVar[str] = "generation"
    parts: ClassVar[tuple[str, ...]] = ("space", "seed")

    text: str = option("", "text to continue")
    new_tokens: int = option(128, "tokens per round", least=1)
    top_p: float | None = option(
        None, "draw each token from the fewest with this probability together (nucleus); null: greedy",
        above=0, most=1, added=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.text:
            raise UserError("method kind 'generate' has no text to continue", fix="set method.text")
