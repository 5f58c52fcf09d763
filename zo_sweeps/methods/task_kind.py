"""The axis `task_kind`: what a task's rows ask for, and what is predicted of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from zo_sweeps.methods.definition import Definition
from zo_sweeps.methods.metric import Of

if TYPE_CHECKING:
    from zo_sweeps.methods.task import Dialect, Task

EACH = "'each' names a field of a multiple_choice task with one option"


@dataclass(frozen=True)
class TaskKind(Definition):
    """How a row's label is read, and what is predicted: the best of its options, unless a kind says otherwise."""

    axis: ClassVar[str] = "task_kind"
    predicts: ClassVar[Of] = Of.LABELS
    own_options: ClassVar[bool] = False  # options differ from row to row

    @property
    def generates(self) -> bool:
        """Whether answers are generated."""
        return self.predicts is Of.TEXTS

    def labels(self, task: Task, dialect: Dialect) -> tuple[Any, ...]:
        """Return the value of the label column that stands for each option; () where none does."""
        return task.labels or tuple(range(len(dialect.options)))

    def wrong(self, task: Task, dialect: Dialect) -> str:
        """Return what is wrong with a wording for this kind of task; "" when it can be used."""
        if dialect.each:
            return EACH
        options, labels = len(dialect.options), len(self.labels(task, dialect))
        if options < 2 or labels != options:
            return f"{options} options and {labels} labels: two or more are needed, one label each"
        return ""

    def problem(self, label: Any, labels: Sequence[Any], column: str) -> str:
        """Return what is wrong with a row's label; "" when it can be used."""
        return "" if label in labels else f"label {label!r} is not one of {', '.join(map(repr, labels))}"

    def gold(self, label: Any, labels: Sequence[Any]) -> int:
        """Return the index of the right option, the one that is trained on."""
        return labels.index(label)

    def references(self, label: Any) -> tuple[str, ...]:
        """Return the accepted answers of a row; () where options are chosen from."""
        return ()

    def value(self, label: Any) -> float | None:
        """Return the real number that `estimate` is compared with; None for kinds that predict none."""
        return None

    def estimate(self, scores: Sequence[float], labels: Sequence[Any]) -> float:
        """Return the real number predicted of a row.

        Args:
            scores: mean log-probability of each option's answer tokens.
        """
        raise NotImplementedError

    def to_json(self) -> Any:
        """Return the name alone where there are no options, as it is written."""
        whole = super().to_json()
        return whole if len(whole) > 1 else self.name
