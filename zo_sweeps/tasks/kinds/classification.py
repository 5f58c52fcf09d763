"""Classification: the same options in every row."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.methods.task_kind import TaskKind


@dataclass(frozen=True)
class Classification(TaskKind):
    """A choice between the task's labels: the one with the highest mean log-probability per answer token."""
