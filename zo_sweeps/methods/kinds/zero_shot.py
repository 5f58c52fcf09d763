"""The model as it is, without training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.kind import Kind


@dataclass(frozen=True)
class ZeroShot(Kind):
    """Scoring of the untrained model. No seed, step or optimizer affects the result."""

    runner: ClassVar[str] = "zo_sweeps.run.runner:Untrained"
