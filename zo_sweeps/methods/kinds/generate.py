"""Generation, timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.kind import Kind


@dataclass(frozen=True)
class Generate(Kind):
    """Time the greedy continuation of a text, with theta written into the weights or multiplied separately."""

    runner: ClassVar[str] = "zo_sweeps.run.generation:Generation"
    generates: ClassVar[bool] = True
    causal_only: ClassVar[str] = "generation"
    parts: ClassVar[tuple[str, ...]] = ("space", "evaluation", "seed")

    text: str = option("", "what is continued")
    new_tokens: int = option(128, "tokens per round", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.text:
            raise UserError("method kind 'generate' needs a method.text")

    @property
    def prompt(self) -> str:
        return self.text

    @property
    def generated(self) -> int:
        return self.new_tokens
