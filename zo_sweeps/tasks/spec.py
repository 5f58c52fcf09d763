"""A task in one dialect, as the code that encodes, checks and scores its rows needs it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods.metric import Metrics, Of
from zo_sweeps.methods.objective import Objective
from zo_sweeps.methods.task import CHAT, Dialect, Task
from zo_sweeps.methods.task_kind import TaskKind
from zo_sweeps.tasks import templates

MASK = "[mask]"  # replaces `{{ mask }}` in a template, where a masked model predicts the label word


@dataclass(frozen=True)
class TaskSpec:
    """A task in one dialect, hashable; made by `of`. Fields without a line here are as in `Task` and `Dialect`.

    Args:
        metrics: its scores; the first selects the step and is shown, by default.
        dialect: name of the wording.
        objective: the dialect's own loss.
        options: template of each answer; the text of a candidate is prompt + option. Generation has one: the answer
            trained on. For a masked objective each is one word, without the space before it.
        each: column with a list (ReCoRD's entities); the single template of `options` makes one option of each
            `item`, and the label column lists the right items.
        labels: the value of `label_field` for each option; () for kinds without such values.
        system: the text of the system turn, in a chat.
    """

    name: str
    kind: TaskKind
    metrics: Metrics
    dialect: str
    objective: Objective
    template: str
    options: tuple[str, ...]
    fields: tuple[str, ...]
    label_field: str
    labels: tuple[Any, ...] = ()
    stop: str = ""
    max_new_tokens: int = 0
    each: str = ""
    system: str = ""

    @classmethod
    def of(cls, task: Task, dialect: str, system: str = "") -> TaskSpec:
        """Return `task` in `dialect`. Raises UserError if the two do not make a well-formed task."""
        wording = task.wording(dialect)
        spec = cls(
            name=task.name,
            kind=task.kind,
            metrics=task.metric,
            dialect=dialect,
            objective=wording.loss,
            template=wording.template,
            options=tuple(wording.options),
            fields=task.fields,
            label_field=task.label_field,
            labels=task.kind.labels(task, wording),
            stop=task.stop,
            max_new_tokens=task.max_new_tokens,
            each=wording.each,
            system=system,
        )
        spec._validate(task, wording)
        return spec

    def _validate(self, task: Task, wording: Dialect) -> None:
        where = f"task {self.name!r}"
        for label in self.labels:
            if not isinstance(label, (str, int, float)):
                raise UserError(f"label {label!r} is not a number or a text", where=where)
        for metric in self.metrics:
            if reason := metric.fits(task):
                raise UserError(f"metric {metric.name!r} does not fit: {reason}", where=where)
        where = f"{where}, dialect {self.dialect!r}"
        for reason in (self.kind.wrong(task, wording), self.objective.fits(task)):
            if reason:
                raise UserError(reason, where=where)
        if self.objective.generates:
            fix = "select it with train.objective, and give the dialect another loss"
            raise UserError(
                f"the loss {self.objective.name!r} cannot be evaluated without generating", where=where, fix=fix
            )
        newline = self.kind.generates and not self.chat and self.stop in ("", "\n")
        if newline and "\n" in self.options[0].strip():
            what = "the answer trained on has several lines, and a generated one ends at its first newline"
            raise UserError(what, where=where, fix='set task.stop, for example to "\\n\\n"')
        words = [option.strip(" ") for option in self.options]
        if same := [word for i, word in enumerate(words) if word in words[:i]]:
            raise UserError(f"two options are both {same[0]!r}, and training cannot tell them apart", where=where)
        masked = self.objective.masked
        if masked and self.chat:
            raise UserError("a chat has no mask", where=where, fix="give it another loss")
        for source in (self.template, *self.options):
            known = {*self.columns, *({"mask"} if masked else ()), *({"item"} if self.each else ())}
            try:
                undefined = templates.names_in(source) - known
            except ValueError as error:
                raise UserError(f"bad template: {error}", where=where) from error
            if undefined:
                raise unknown("field", min(undefined), self.columns, where=f"the template of {where}")
        if masked and "mask" not in templates.names_in(self.template):
            raise UserError("the template has no {{ mask }}", where=where)

    @property
    def chat(self) -> bool:
        """Whether its texts are turns of the model's own chat template."""
        return self.dialect == CHAT

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that a row must have."""
        return tuple(dict.fromkeys((*self.fields, self.label_field.partition(".")[0])))

    def problem(self, row: Mapping[str, Any]) -> str:
        """Return the reason why a row cannot be used; "" if it can."""
        for column in self.columns:
            if column not in row:
                return f"missing field {column!r}"
            if row[column] is None or row[column] != row[column]:  # NaN, as pandas has a missing text
                return f"field {column!r} is {json.dumps(row[column])}"
        try:
            label = self._label(row)
        except (KeyError, TypeError):
            return f"missing field {self.label_field!r}"
        if self.each:
            return self._each_problem(row, label)
        return self.kind.problem(label, self.labels, self.label_field)

    def _each_problem(self, row: Mapping[str, Any], label: Any) -> str:
        items = row[self.each]
        if not _is_list(items) or len(items) < 2:
            return f"{self.each!r} is not a list of two or more options"
        if not _is_list(label) or not label:
            return f"{self.label_field!r} is not a list of one or more answers"
        absent = [answer for answer in label if answer not in items]
        return f"the answer {absent[0]!r} is not among {self.each!r}" if absent else ""

    def gold(self, row: Mapping[str, Any]) -> int:
        """Return the index of the right option, the first of several. The row must have no `problem`."""
        if self.each:
            return list(row[self.each]).index(self._label(row)[0])
        return self.kind.gold(self._label(row), self.labels)

    def golds(self, row: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the indices of all right options, any of which counts (ReCoRD). The row must have no `problem`."""
        if not self.each:
            return (self.gold(row),)
        answers = self._label(row)
        return tuple(i for i, item in enumerate(row[self.each]) if item in answers)

    def references(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the accepted answers of a generation row, or a rewarded row as JSON; () for the other kinds."""
        if self.kind.predicts is Of.REWARDS:
            return (json.dumps({column: row[column] for column in self.columns}, default=str),)
        return self.kind.references(self._label(row))

    def value(self, row: Mapping[str, Any]) -> float | None:
        """Return the right number of a regression row; None for the other kinds."""
        return self.kind.value(self._label(row))

    def _label(self, row: Mapping[str, Any]) -> Any:
        value: Any = row
        for part in self.label_field.split("."):
            value = value[part]
        return value


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
