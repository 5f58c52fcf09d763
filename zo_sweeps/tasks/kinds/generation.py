"""Generation of free text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.methods.metric import Of
from zo_sweeps.methods.task import Dialect, Task
from zo_sweeps.methods.task_kind import KindExample, TaskKind


@dataclass(frozen=True)
class Generation(TaskKind):
    """Greedy generation of an answer; the label column lists the accepted ones, of which the first is trained on."""

    predicts: ClassVar[Of] = Of.TEXTS
    examples = (
        KindExample(
            {"text": "Where?", "label": ["Paris", "paris"]}, "{{ text }}", (" {{ label[0] }}",), "Where?", (" Paris",),
            gold=0, references=("Paris", "paris"),
        ),
    )  # fmt: skip

    def labels(self, task: Task, dialect: Dialect) -> tuple[Any, ...]:
        return ()

    def wrong(self, task: Task, dialect: Dialect) -> str:
        if len(dialect.options) == 1 and dialect.loss.gold_only and task.max_new_tokens > 0:
            return ""
        return "a generation task needs one option (the answer trained on), loss 'tokens' and max_new_tokens >= 1"

    def problem(self, label: Any, labels: Sequence[Any], column: str) -> str:
        answers = label if isinstance(label, Sequence) and not isinstance(label, str) else ()
        if answers and all(isinstance(answer, str) for answer in answers):
            return ""
        return f"{column!r} is not a list of one or more answers"

    def gold(self, label: Any, labels: Sequence[Any]) -> int:
        return 0

    def references(self, label: Any) -> tuple[str, ...]:
        return tuple(label)
