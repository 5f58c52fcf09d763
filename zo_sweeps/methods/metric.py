"""The axis `metric`: the score of a split's predictions, with its name, unit and direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.definition import NOWHERE, Definition, Locate

if TYPE_CHECKING:
    from zo_sweeps.methods.task import Task

RESERVED = ("loss", "metric")  # dev/loss and dev/metric are names of curves already


class Of(str, Enum):
    """The inputs of a metric: its predictions; the references that they are compared with.

    labels: indices of options; indices of the right options. texts: generated answers; lists of accepted answers.
    scores: real numbers; the right numbers. losses: -log p of every right answer, in nats; its number of tokens.
    rewards: per row, a list of the rewards of its texts; the list of these texts.
    """

    LABELS = "labels"
    TEXTS = "texts"
    SCORES = "scores"
    REWARDS = "rewards"
    LOSSES = "losses"


@dataclass(frozen=True)
class Metric(Definition):
    """A score of predictions against references.

    Its value is stored as computed (a share, a correlation, ...) and printed as a multiple of `unit_size`: a share of
    0.912 as 91.2 %.
    """

    axis: ClassVar[str] = "metric"
    bare: ClassVar[bool] = True
    display: ClassVar[str] = ""
    of: ClassVar[Of] = Of.LABELS
    classes: ClassVar[bool] = False  # label i must mean the same in every row
    share_right: ClassVar[bool] = False  # of rows: a guess, and the most frequent label, have a score of their own
    unit: ClassVar[str] = "%"
    unit_size: ClassVar[float] = 0.01  # value of one printed unit
    digits: ClassVar[int] = 1
    better: ClassVar[Literal["higher", "lower"]] = "higher"
    # (predictions, references, score), worked out by hand: what the contract tests hold `compute` to, options at their
    # defaults. At least one; one with a score besides 0 and 1; and one whose score changes if its lists change places,
    # unless the metric is symmetric.
    examples: ClassVar[tuple[tuple[Sequence[Any], Sequence[Any], float], ...]] = ()

    def fits(self, task: Task) -> str:
        """Return why it cannot be computed from the task's predictions; "" if it can."""
        if self.of not in (task.kind.predicts, Of.LOSSES):
            return (
                f"it is computed from {self.of.value}, but a {task.kind.name} task predicts {task.kind.predicts.value}"
            )
        if self.classes and task.kind.own_options:
            return f"it needs the same labels in every row, but those of a {task.kind.name} task differ from row to row"
        return ""

    def compute(self, predictions: Sequence[Any], references: Sequence[Any]) -> float:
        """Return the score of lists as `Of` describes them. Raises ValueError if they differ in length or are empty."""
        raise NotImplementedError

    def printed(self, value: float) -> str:
        """Return a value in printed units, without the unit: 0.912 -> "91.2"."""
        return f"{value / self.unit_size:.{self.digits}f}"


class Metrics(tuple[Metric, ...]):
    """The metrics of a task. All are recorded; the first selects the step and is shown, unless another is requested."""

    @classmethod
    def read(cls, value: Any, path: str = "", locate: Locate = NOWHERE) -> Metrics:
        """Return the metrics that a name, a mapping {name: ..., options} or a list of them describes.

        Raises UserError for an unknown metric or option, a reserved name, a metric named twice, or an empty list.
        """
        metrics: list[Metric] = []
        for one in value if isinstance(value, (list, tuple)) else [value]:
            metric = Metric.read(one, path, locate)
            if metric.name in RESERVED:
                raise UserError(
                    f"a metric cannot be called {metric.name!r}: that name is reserved", where=locate(path) or path
                )
            if metric.name in [other.name for other in metrics]:
                raise UserError(f"the metric {metric.name!r} is named twice", where=locate(path) or path)
            metrics.append(metric)
        if not metrics:
            raise UserError(f"{path} names no metric", where=locate(path), fix="write metric: accuracy, or a list")
        return cls(metrics)

    def to_json(self) -> Any:
        """Return the single metric, or the list of several, as `read` accepts."""
        written = [metric.to_json() for metric in self]
        return written[0] if len(written) == 1 else written


def as_mapping(metric: Metric) -> Mapping[str, Any]:
    """Return a metric's facts for tables, under the field names of `zo_sweeps.tables.records.Measure`."""
    facts = ("unit", "unit_size", "digits", "better")
    return {"name": metric.display or metric.name, **{fact: getattr(metric, fact) for fact in facts}}


def same_length(predictions: Sequence[Any], references: Sequence[Any]) -> None:
    """Raise ValueError if the lists differ in length or are empty."""
    if len(predictions) != len(references) or not references:
        raise ValueError(f"{len(predictions)} predictions for {len(references)} references")
