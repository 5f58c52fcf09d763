"""Zeroth-order training: forward passes only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.kind import Kind


@dataclass(frozen=True)
class ZerothOrder(Kind):
    """Training by zeroth-order estimates; the log of coefficients determines a run, which resumes from it."""

    runner: ClassVar[str] = "zo_sweeps.run.training:ZerothOrderRunner"
    trains: ClassVar[bool] = True
    estimates: ClassVar[bool] = True
    resumes: ClassVar[bool] = True
    parts: ClassVar[tuple[str, ...]] = (
        "space", "update", "train", "gradients", "seed", "estimator", "perturbation", "evaluation",
    )  # fmt: skip
