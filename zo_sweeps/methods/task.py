"""Tasks: rows, wordings (dialects), predictions, training objective and metrics. One YAML per task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods.definition import NOWHERE, Checked, Locate, identity, option
from zo_sweeps.methods.metric import Metrics
from zo_sweeps.methods.objective import Objective
from zo_sweeps.methods.task_kind import TaskKind

CHAT = "chat"  # the dialect of every task with a plain wording: its texts as turns of the model's own chat template


class Template(str):
    """The text of a prompt or of an answer, as a Jinja template."""

    @classmethod
    def read(cls, value: Any, path: str = "", locate: Locate = NOWHERE) -> str:
        """Return `value`. Raises UserError unless it is text: YAML reads a bare Yes as true."""
        if not isinstance(value, str):
            fix = 'put it in quotes, as in ["Yes", "No"]'
            raise UserError(f"{path}: {value!r} is not text", where=locate(path), fix=fix)
        return value


@dataclass(frozen=True)
class Dialect(Checked):
    """One wording of a task."""

    loss: Objective = option(help="the objective: candidates, tokens or label_words")
    template: Template = option(
        help="the prompt, up to the answer; for a masked model the whole text, with {{ mask }} once"
    )
    options: tuple[Template, ...] = option(help="template of each answer; a candidate is prompt + answer")
    each: str = option("", "column with a list; the single template of options then makes one answer per item")


@dataclass(frozen=True)
class Hub(Checked):
    """A data set of the Hugging Face hub."""

    path: str = option(help="owner/name of the data set", identity=False)
    name: str | None = option(None, "its configuration", identity=False)
    train: str = option("train", "the split that train and dev are drawn from")
    test: str = option("validation", "the split that test is drawn from")
    rename: Mapping[str, str] = option(dict, "column in zo_sweeps: column in the data set")
    unlabelled: int | None = option(None, "label of rows to leave out")


@dataclass(frozen=True)
class Gym(Checked):
    """Rows of a generator of reasoning-gym (`pip install 'zo-sweeps[rewards]'`), with other questions in each split.

    Rows are numbered from 0, those with an earlier question left out: the first are test, the next dev, then train.
    """

    dataset: str = option(help="name of the generator")
    options: Mapping[str, Any] = option(dict, "its own options")
    seed: int = option(0, "seed of the rows", least=0)
    train: int = option(1000, "rows to draw train from", least=1)
    dev: int = option(200, "rows to draw dev from", least=1)
    test: int = option(500, "rows to draw test from", least=1)


@dataclass(frozen=True)
class Lengths(Checked):
    """The usual lengths of a task's texts, by which a plan estimates work and memory before rows can be read.

    Those in conf/task are counted by the demo model's tokenizer: 4,096 words make more tokens than a larger vocabulary.
    """

    mean: int = option(help="mean tokens of a prompt with its longest answer", least=1)
    longest: int = option(help="tokens that all but one in 1,000 do not exceed", least=1)


@dataclass(frozen=True)
class Task(Checked):
    """A task, as in conf/task/*.yaml."""

    name: str = option(help="its name on the command line", identity=False)
    display: str = option(help="its name in tables, as papers print it", identity=False)
    kind: TaskKind = option(help="classification, multiple_choice, generation or regression")
    metric: Metrics = option(help="the name of a metric, a mapping {name: ..., options}, or a list of them")
    fields: tuple[str, ...] = option(help="columns that a row must have, besides the label")
    label_field: str = option(help="column with the right answer; dots reach into nested columns")
    dialects: Mapping[str, Dialect] = option(help="its wordings; a trial uses one", identity=False)
    hub: Hub | None = option(None, "the data set on the Hugging Face hub", identity=False)
    gym: Gym | None = option(None, "its generator of rows, in place of files and hub", identity=False)
    local: str = option("", "its folder under data.dir; defaults to its name", identity=False)
    source: Literal["", "packaged"] = option("", "packaged: the rows ship with zo_sweeps", identity=False)
    labels: tuple[Any, ...] = option((), "value of label_field for each option; defaults to 0, 1, ...")
    dev_size: int | None = option(None, "maximum number of dev rows", least=1)
    stop: str = option("", "text at which generated answers are cut; defaults to a newline that is a token of its own")
    max_new_tokens: int = option(0, "maximum tokens of a generated answer", least=0)
    lengths: Lengths | None = option(None, "usual lengths of its texts, for estimates", identity=False)
    fingerprint: str = option("", "identity of its data; set by the planner")

    def wording(self, dialect: str) -> Dialect:
        """Return a dialect by name; CHAT defaults to the first one without a mask.

        Raises UserError, with the choices, for one that the task does not have.
        """
        plain = next((one for one in self.dialects.values() if not one.loss.masked), None)
        known = {**({} if plain is None else {CHAT: plain}), **self.dialects}
        if dialect not in known:
            raise unknown("prompt dialect", dialect, known, where=f"task {self.name!r}")
        return known[dialect]

    def in_dialect(self, dialect: str) -> dict[str, Any]:
        """Return the fields that affect a result in one dialect; the data counts by content where that is known."""
        fields = {**identity(self), "dialect": identity(self.wording(dialect))}
        if not self.fingerprint:
            fields["data"] = self.name
        elif self.fingerprint.startswith("hf:"):  # identifies the whole data set; `hub` adds the splits in use
            fields["data"] = identity(self.hub)
        return fields

    @property
    def folder(self) -> str:
        """Name of its folder under data.dir."""
        return self.local or self.name
