"""The axis `task_kind`: how a task's rows are labelled, and the form of the predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from zo_sweeps.methods.definition import Definition
from zo_sweeps.methods.metric import Of

if TYPE_CHECKING:
    from zo_sweeps.methods.task import Dialect, Task

EACH = "'each' must name a field of a multiple_choice task, whose dialect has exactly one option"


class KindExample(NamedTuple):
    """A task in one wording, one of its rows, and what a kind makes of them.

    Args:
        row: its columns; "label" has the right answer.
        template, options, each, labels: of the task and its wording, as in YAML.
        prompt, answers: the text up to the answer, and each candidate's answer after it.
        gold, golds: index of the candidate trained on; of all right ones, if there are several.
        references: the accepted answers; of a rewarded row, itself as JSON. value: the right number.
        scores, estimate: a score per option, and the number that is predicted from them.
    """

    row: Mapping[str, Any]
    template: str
    options: tuple[str, ...]
    prompt: str
    answers: tuple[str, ...]
    gold: int
    golds: tuple[int, ...] = ()
    labels: tuple[Any, ...] = ()
    each: str = ""
    references: tuple[str, ...] = ()
    value: float | None = None
    scores: tuple[float, ...] = ()
    estimate: float | None = None


@dataclass(frozen=True)
class TaskKind(Definition):
    """A kind of task: how a row's label is read, and what is predicted (by default the best of its options)."""

    axis: ClassVar[str] = "task_kind"
    bare: ClassVar[bool] = True
    predicts: ClassVar[Of] = Of.LABELS
    own_options: ClassVar[bool] = False  # options differ from row to row
    # What the contract tests hold a kind to: at least one, and of options, one whose gold option is not the first.
    examples: ClassVar[tuple[KindExample, ...]] = ()

    @property
    def generates(self) -> bool:
        """Whether answers are generated."""
        return self.predicts in (Of.TEXTS, Of.REWARDS)

    @property
    def samples(self) -> int:
        """Texts generated per row."""
        return 1

    @property
    def temperature(self) -> float:
        """The temperature at which they are drawn; 0: the most likely token is taken."""
        return 0.0

    def labels(self, task: Task, dialect: Dialect) -> tuple[Any, ...]:
        """Return each option's value in the label column; () for kinds without such values."""
        return task.labels or tuple(range(len(dialect.options)))

    def wrong(self, task: Task, dialect: Dialect) -> str:
        """Return the reason why a dialect does not suit this kind of task; "" if it does."""
        if dialect.each:
            return EACH
        options, labels = len(dialect.options), len(self.labels(task, dialect))
        if options < 2 or labels != options:
            return f"{options} options and {labels} labels: a task needs two or more options, and one label for each"
        return ""

    def problem(self, label: Any, labels: Sequence[Any], column: str) -> str:
        """Return the reason why a row's label cannot be used; "" if it can."""
        return "" if label in labels else f"label {label!r} is not one of {', '.join(map(repr, labels))}"

    def gold(self, label: Any, labels: Sequence[Any]) -> int:
        """Return the index of the right option, which is the one trained on."""
        return labels.index(label)

    def references(self, label: Any) -> tuple[str, ...]:
        """Return the accepted answers of a row; () for kinds that choose among options."""
        return ()

    def value(self, label: Any) -> float | None:
        """Return the real number that `estimate` is compared with; None for kinds that predict none."""
        return None

    def estimate(self, scores: Sequence[float], labels: Sequence[Any]) -> float:
        """Return the real number predicted for a row.

        Args:
            scores: mean log-probability of each option's answer tokens.
            labels: the value of each option, from `labels`.
        """
        raise NotImplementedError
