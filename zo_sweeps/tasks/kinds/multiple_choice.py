"""Multiple choice: options that differ from row to row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.methods.task import Dialect, Task
from zo_sweeps.methods.task_kind import EACH, KindExample, TaskKind


@dataclass(frozen=True)
class MultipleChoice(TaskKind):
    """A choice between a row's own options: one per template, or with `each` one per item of a list.

    With `each`, the label column lists the right items: any of them counts, and the first is trained on.
    """

    own_options: ClassVar[bool] = True
    examples = (
        KindExample(
            {"text": "Rain:", "one": "dry", "two": "wet", "label": 1}, "{{ text }}", (" {{ one }}", " {{ two }}"),
            "Rain:", (" dry", " wet"), gold=1,
        ),
        KindExample(
            {"text": "In", "of": ["Rome", "Oslo", "Bern"], "label": ["Bern", "Oslo"]}, "{{ text }}", (" {{ item }}",),
            "In", (" Rome", " Oslo", " Bern"), gold=2, golds=(1, 2), each="of",
        ),
    )  # fmt: skip

    def labels(self, task: Task, dialect: Dialect) -> tuple[Any, ...]:
        return () if dialect.each else super().labels(task, dialect)

    def wrong(self, task: Task, dialect: Dialect) -> str:
        if not dialect.each:
            return super().wrong(task, dialect)
        return "" if len(dialect.options) == 1 and dialect.each in task.fields else EACH
