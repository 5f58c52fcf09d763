"""Classification: the same options in every row."""

from __future__ import annotations

from dataclasses import dataclass

from zo_sweeps.methods.task_kind import KindExample, TaskKind


@dataclass(frozen=True)
class Classification(TaskKind):
    """A choice between the task's labels: the one with the highest mean log-probability per answer token."""

    examples = (
        KindExample(
            {"text": "Rain.", "label": "b"}, "{{ text }} Wet?", (" No", " Yes", " Maybe"), "Rain. Wet?",
            (" No", " Yes", " Maybe"), gold=1, labels=("a", "b", "c"),
        ),
    )  # fmt: skip
