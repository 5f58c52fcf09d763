"""In-context learning: solved examples before the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.kind import Kind


@dataclass(frozen=True)
class ICL(Kind):
    """Score the untrained model after solved examples, a random set of its own for each test example."""

    runner: ClassVar[str] = "zo_sweeps.run.untrained:Untrained"
    causal_only: ClassVar[str] = "in-context learning"
    parts: ClassVar[tuple[str, ...]] = ("seed",)

    demonstrations: int = option(32, "solved examples before the prompt, or as many as fit", least=1)

    @property
    def shown(self) -> int:
        return self.demonstrations
