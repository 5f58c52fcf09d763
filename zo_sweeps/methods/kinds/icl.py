"""In-context learning: solved examples before the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.kind import Kind


@dataclass(frozen=True)
class ICL(Kind):
    """Scoring of the untrained model, each test example after a random set of solved examples of its own."""

    runner: ClassVar[str] = "zo_sweeps.run.runner:Untrained"
    causal_only: ClassVar[str] = "in-context learning"
    parts: ClassVar[tuple[str, ...]] = ("seed",)

    demonstrations: int = option(32, "solved examples before the prompt; fewer if they do not fit", least=1)
