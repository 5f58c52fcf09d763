"""The same options in every row."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.methods.task_kind import TaskKind


@dataclass(frozen=True)
class Classification(TaskKind):
    """Choose between the task's labels; the predicted one has the highest mean log-probability per answer token."""
