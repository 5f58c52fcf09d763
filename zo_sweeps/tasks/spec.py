"""What a task is, in one dialect: read from the task's YAML, checked, frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.tasks import templates

METRICS = ("accuracy", "f1")
KINDS = ("classification", "multiple_choice", "generation")
LOSSES = ("candidates", "tokens", "label_words")
MASK = "[mask]"  # what `{{ mask }}` of a template becomes: the place where a masked model writes the label word

_REQUIRED = {"name", "display", "metric", "kind", "fields", "label_field", "dialects"}
_OPTIONAL = {"hub", "local", "source", "labels", "dev_size", "stop", "max_new_tokens", "fingerprint"}
_DIALECT = {"template", "options", "loss"}
_DIALECT_OPTIONAL = {"each"}


@dataclass(frozen=True)
class TaskSpec:
    """A task in one dialect.

    Args:
        name, display: for the command line, and as the papers print it.
        metric: "accuracy" or "f1" (SQuAD's).
        kind: "classification" (the same labels for every row), "multiple_choice" (the row brings its own) or
            "generation" (text).
        dialect: whose wording.
        loss: "candidates": cross-entropy over the candidates' mean log-probabilities (MeZO); "tokens":
            full-vocabulary cross-entropy on the gold answer's tokens (P-RGE); "label_words": cross-entropy over the
            label words' logits at the mask of a masked model (LM-BFF, MeZO's RoBERTa part).
        template: the prompt, up to the answer; for "label_words" all of the text, with `{{ mask }}` in it once.
        options: template of each answer; the text of a candidate is prompt + option. Generation has one: the answer
            trained on. For "label_words" each is one word, without the space that goes before it.
        each: a column with a list (ReCoRD's entities): the one template of `options` makes an option of every item,
            as `item`, and the column of the label lists the items that are right.
        fields: columns that a row must have, beside the label.
        label_field: column with the gold (dots go into nested columns); for generation, with the list of accepted
            answers.
        labels: the value of `label_field` that stands for each option.
        stop, max_new_tokens: where generation ends.
    """

    name: str
    display: str
    metric: str
    kind: str
    dialect: str
    loss: str
    template: str
    options: tuple[str, ...]
    fields: tuple[str, ...]
    label_field: str
    labels: tuple[Any, ...] = ()
    stop: str = ""
    max_new_tokens: int = 0
    each: str = ""

    @classmethod
    def from_config(cls, task: Mapping[str, Any], dialect: str) -> TaskSpec:
        """The task of a mapping as in conf/task/*.yaml, in `dialect`. Raises UserError when it is not well formed."""
        where = f"task {task.get('name', '?')!r}"
        for key in task:
            if key not in _REQUIRED | _OPTIONAL:
                raise unknown("key", key, _REQUIRED | _OPTIONAL, where=where)
        for key in sorted(_REQUIRED):
            if not task.get(key):
                raise UserError(f"missing key {key!r}", where=where, fix="see conf/task/sst2.yaml for an example")
        _one_of("metric", task["metric"], METRICS, where)
        _one_of("kind", task["kind"], KINDS, where)
        if dialect not in task["dialects"]:
            raise unknown("prompt dialect", dialect, task["dialects"], where=where)
        wording = task["dialects"][dialect]
        where = f"{where}, dialect {dialect!r}"
        for key in wording:
            if key not in _DIALECT | _DIALECT_OPTIONAL:
                raise unknown("key", key, _DIALECT | _DIALECT_OPTIONAL, where=where)
        missing = _DIALECT - set(wording)
        if missing:
            raise UserError(f"missing key {min(missing)!r}", where=where)
        if isinstance(task["fields"], str) or isinstance(wording["options"], str):
            raise UserError("'fields' and 'options' are lists", where=where)
        _one_of("loss", wording["loss"], LOSSES, where)
        options = tuple(wording["options"])
        spec = cls(
            name=task["name"],
            display=task["display"],
            metric=task["metric"],
            kind=task["kind"],
            dialect=dialect,
            loss=wording["loss"],
            template=wording["template"],
            options=options,
            fields=tuple(task["fields"]),
            label_field=task["label_field"],
            labels=() if wording.get("each") else tuple(task.get("labels") or range(len(options))),
            stop=task.get("stop") or "",
            max_new_tokens=int(task.get("max_new_tokens") or 0),
            each=wording.get("each") or "",
        )
        spec._validate(where)
        return spec

    def _validate(self, where: str) -> None:
        for source in (self.template, *self.options):
            if not isinstance(source, str):  # YAML reads a bare Yes as true
                raise UserError(f"{source!r} is not text", where=where, fix='put it in quotes, as in ["Yes", "No"]')
        for label in self.labels:
            if not isinstance(label, (str, int, float)):
                raise UserError(f"label {label!r} is not a number or a text", where=where)
        if self.kind == "generation":
            if len(self.options) != 1 or self.loss != "tokens" or self.max_new_tokens < 1:
                raise UserError(
                    "a generation task has one option (the answer trained on), loss 'tokens' and max_new_tokens of 1 "
                    "or more",
                    where=where,
                )
        elif self.each:
            if self.kind != "multiple_choice" or len(self.options) != 1 or self.each not in self.fields:
                raise UserError("'each' names a field of a multiple_choice task with one option", where=where)
        elif len(self.options) < 2 or len(self.labels) != len(self.options):
            raise UserError(
                f"{len(self.options)} options and {len(self.labels)} labels: two or more are needed, one label each",
                where=where,
            )
        masked = self.loss == "label_words"
        if masked and self.kind != "classification":
            raise UserError("the loss 'label_words' is for classification", where=where)
        for source in (self.template, *self.options):
            known = {*self.columns, *({"mask"} if masked else ()), *({"item"} if self.each else ())}
            try:
                strangers = templates.names_in(source) - known
            except ValueError as error:
                raise UserError(f"bad template: {error}", where=where) from error
            if strangers:
                raise unknown("field", min(strangers), self.columns, where=f"the template of {where}")
        if masked and "mask" not in templates.names_in(self.template):
            raise UserError("the template has no {{ mask }}", where=where)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that a row must have."""
        return tuple(dict.fromkeys((*self.fields, self.label_field.partition(".")[0])))

    def problem(self, row: Mapping[str, Any]) -> str:
        """What is wrong with a row, or "" when it can be used."""
        for column in self.columns:
            if column not in row:
                return f"missing field {column!r}"
            if row[column] is None:
                return f"field {column!r} is null"
        try:
            label = self._label(row)
        except (KeyError, TypeError):
            return f"missing field {self.label_field!r}"
        if self.each:
            return self._each_problem(row, label)
        if self.kind != "generation":
            return "" if label in self.labels else f"label {label!r} is not one of {_listed(self.labels)}"
        answers = label if _is_list(label) else ()
        if not answers or not all(isinstance(answer, str) for answer in answers):
            return f"{self.label_field!r} is not a list of one or more answers"
        return ""

    def _each_problem(self, row: Mapping[str, Any], label: Any) -> str:
        items = row[self.each]
        if not _is_list(items) or len(items) < 2:
            return f"{self.each!r} is not a list of two or more options"
        if not _is_list(label) or not label:
            return f"{self.label_field!r} is not a list of one or more answers"
        strangers = [answer for answer in label if answer not in items]
        return f"the answer {strangers[0]!r} is not among {self.each!r}" if strangers else ""

    def gold(self, row: Mapping[str, Any]) -> int:
        """Index of the right option, the first of several. The row must have no `problem`."""
        if self.each:
            return list(row[self.each]).index(self._label(row)[0])
        return 0 if self.kind == "generation" else self.labels.index(self._label(row))

    def golds(self, row: Mapping[str, Any]) -> tuple[int, ...]:
        """Indices of every right option: of ReCoRD's several, any counts. The row must have no `problem`."""
        if not self.each:
            return (self.gold(row),)
        answers = self._label(row)
        return tuple(i for i, item in enumerate(row[self.each]) if item in answers)

    def references(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Accepted answers of a generation row; empty for the other kinds."""
        return tuple(self._label(row)) if self.kind == "generation" else ()

    def _label(self, row: Mapping[str, Any]) -> Any:
        value: Any = row
        for part in self.label_field.split("."):
            value = value[part]
        return value


def _one_of(kind: str, value: str, choices: tuple[str, ...], where: str) -> None:
    if value not in choices:
        raise unknown(kind, value, choices, where=where)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _listed(values: Sequence[object]) -> str:
    return ", ".join(repr(value) for value in values)
