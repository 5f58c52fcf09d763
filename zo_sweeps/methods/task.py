"""A task: its rows, its wordings (dialects), what is predicted, trained and scored. One YAML per task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods.definition import NOWHERE, Checked, Locate, option
from zo_sweeps.methods.metric import Metrics
from zo_sweeps.methods.objective import Objective
from zo_sweeps.methods.task_kind import TaskKind


class Template(str):
    """The text of a prompt or of an answer, as a Jinja template."""

    @classmethod
    def read(cls, value: Any, path: str = "", locate: Locate = NOWHERE) -> str:
        """Return `value`. Raises UserError for what is no text: YAML reads a bare Yes as true."""
        if not isinstance(value, str):
            fix = 'put it in quotes, as in ["Yes", "No"]'
            raise UserError(f"{path}: {value!r} is not text", where=locate(path), fix=fix)
        return value


@dataclass(frozen=True)
class Dialect(Checked):
    """One wording of a task."""

    loss: Objective = option(help="the objective: candidates, tokens or label_words")
    template: Template = option(
        help="the prompt, up to the answer; with a mask, all of the text and {{ mask }} in it once"
    )
    options: tuple[Template, ...] = option(
        help="the template of each answer; prompt + answer is what a candidate reads"
    )
    each: str = option("", "a column with a list: the one template of options makes an answer of every item")


@dataclass(frozen=True)
class Hub(Checked):
    """A data set of the Hugging Face hub."""

    path: str = option(help="owner/name of the data set", identity=False)
    name: str | None = option(None, "its configuration", identity=False)
    train: str = option("train", "the split that train and dev are drawn from")
    test: str = option("validation", "the split that test is drawn from")
    rename: Mapping[str, str] = option(dict, "our column: theirs")
    unlabelled: int | None = option(None, "rows with this label are left out")


@dataclass(frozen=True)
class Task(Checked):
    """A task, as in conf/task/*.yaml."""

    name: str = option(help="its name on the command line", identity=False)
    display: str = option(help="its name in tables, as papers print it", identity=False)
    kind: TaskKind = option(help="classification, multiple_choice, generation or regression")
    metric: Metrics = option(help="the name of a metric, a mapping {name: ..., options}, or a list of them")
    fields: tuple[str, ...] = option(help="columns that a row must have, beside the label")
    label_field: str = option(help="the column with the right answer; dots go into nested columns")
    dialects: Mapping[str, Dialect] = option(help="its wordings; a trial has one", identity=False)
    hub: Hub | None = option(None, "the data set on the Hugging Face hub")
    local: str = option("", "its folder below data.dir; defaults to its name", identity=False)
    source: Literal["", "packaged"] = option("", "packaged: the rows ship with zo_sweeps", identity=False)
    labels: tuple[Any, ...] = option((), "the value of label_field that stands for each option; defaults to 0, 1, ...")
    dev_size: int | None = option(None, "most rows of dev", least=1)
    stop: str = option("", "generated answers end before it; defaults to a newline")
    max_new_tokens: int = option(0, "tokens of a generated answer", least=0)
    fingerprint: str = option("", "of its data; set when a sweep is planned")

    def wording(self, dialect: str) -> Dialect:
        """Return one of its dialects. Raises UserError for one that it does not have."""
        if dialect not in self.dialects:
            raise unknown("prompt dialect", dialect, self.dialects, where=f"task {self.name!r}")
        return self.dialects[dialect]

    @property
    def folder(self) -> str:
        """Name of its local folder."""
        return self.local or self.name
