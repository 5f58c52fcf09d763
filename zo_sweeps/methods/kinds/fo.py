"""First-order training: backpropagation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.kind import Kind


@dataclass(frozen=True)
class FirstOrder(Kind):
    """Training by backpropagation through the same space, batches and loss: the papers' FO rows."""

    runner: ClassVar[str] = "zo_sweeps.run.backpropagation:Backpropagation"
    trains: ClassVar[bool] = True
    backpropagates: ClassVar[bool] = True
    parts: ClassVar[tuple[str, ...]] = ("space", "update", "train", "gradients", "seed")
