"""Trials in the calling process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from zo_sweeps.methods.executor import Executor

if TYPE_CHECKING:
    from zo_sweeps.schedule.inline_backend import InlineBackend


@dataclass(frozen=True)
class Inline(Executor):
    """This process, one trial at a time: for debugging, profiling and tests. It joins no cluster."""

    concurrent: ClassVar[bool] = False

    @property
    def threads(self) -> int:
        return self.workers * self.cpus_per_trial

    def build(self, state_dir: Path, address: str | None) -> InlineBackend:
        from zo_sweeps.schedule.inline_backend import InlineBackend

        return InlineBackend(threads=self.cpus_per_trial, options=self)
