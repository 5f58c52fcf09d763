"""The inputs of a table as plain data: records of trials, the measure that a cell shows, and the table's layout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING as REQUIRED
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any

from zo_sweeps.core.errors import UserError, require_known
from zo_sweeps.core.place import FACTS, Place
from zo_sweeps.core.trial import TrialState

NOT_RUN = "NOT_RUN"  # planned, never started
MISSING = "MISSING"  # cannot run here: its data or model is missing; `Record.note` names it

AVERAGE, LARGEST, RANK = "average", "largest", "rank"  # keys of the optional columns

STATES = (*(state.value for state in TrialState), NOT_RUN, MISSING)


@dataclass(frozen=True)
class Record:
    """One planned trial as a row of input to a table, run or not.

    Args:
        block, column: its cell (a row of the grid and, usually, a task).
        seed: trials that differ only in the seed are averaged.
        hyperparameters: the values of the block's searched axes, e.g. {"update.lr": 1e-4, "estimator.q": 4}.
        state: a TrialState value, "NOT_RUN" or "MISSING".
        metrics: by the names of `trial.Outcome`, in fractions, seconds and bytes.
        note: one line on why there is no result; printed as a footnote if `state` is "MISSING".
        order: position in the grid; in the selection, ties go to the first.
        also: further seeds that this same trial serves because nothing in it is random (zero-shot).
        unmeasured: how the names of metrics begin that could not be measured -> the reason.
        places: where its attempts ran; (): not known.
    """

    trial_id: str
    block: str
    column: str
    seed: int
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    state: str = NOT_RUN
    metrics: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    order: int = 0
    also: tuple[int, ...] = ()
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    places: tuple[Place, ...] = ()

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"record {self.trial_id}: state {self.state!r} is none of {', '.join(STATES)}")

    @property
    def is_result(self) -> bool:
        return self.state in TrialState.__members__ and TrialState(self.state).is_result


LEARNED = ("dev/", "test/", "gradients/", "final_train_loss")  # how metrics begin that are no cost


@dataclass(frozen=True)
class Measure:
    """The value of a cell: (metrics[metric] - metrics[minus]) / unit_size, with `digits` decimals and `unit`.

    With `ratio`, a cell is that value of another row over the row's own (a speed-up), and with `paired` the mean over
    seeds of its own minus the other's, with an interval; the table names the other row. With `reaches` it is of a
    search: how many of its settings, in a random order, are expected until one has that share of the best value. Of a
    metric that is better when lower, it is above 1.

    Args:
        metric: name in `Record.metrics`, e.g. "test/metric"; "" for a published measure that is never measured here.
        minus: another metric to subtract (the weights from the peak memory); "" for none.
        unit_size: one printed unit in recorded units: 0.01 for percent of a fraction, 60 for minutes of seconds.
        better: "higher" or "lower".
        definition: one line printed below the table: the exact definition of the measurement.
        beside: a second measure printed in brackets in the same cell (seconds per step after minutes).
        columns: label -> metric, or the fields in which the column's measure differs: the columns of a table in place
            of one for each of the grid's; {}: the grid's own.
        published: of such a column: its name in the published table, if not the label.
        example: what the contract tests hold the layout to: `trial`, the metrics of a trial (of compared rows also
            `over`, the other row's; of a search also `search`, the values of its other settings), and `shows`, the
            numbers of its cells in the layout's units.
        name: the measure's usual name, if `metric` does not tell ("Pearson correlation", for test/metric).
        of_step: whether it is of a training step: rows that take none are left out.
    """

    metric: str
    unit: str
    unit_size: float = 1.0
    digits: int = 1
    better: str = "higher"
    definition: str = ""
    beside: Measure | None = None
    minus: str = ""
    name: str = ""
    ratio: bool = False
    paired: bool = False
    reaches: float = 0.0
    columns: Mapping[str, str | Mapping[str, Any]] = field(default_factory=dict, hash=False)
    published: str = ""
    example: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)
    of_step: bool = False

    def __post_init__(self) -> None:
        require_known("direction", [self.better], ("higher", "lower"), where=f"measure of {self.metric}")
        if not self.unit_size > 0:
            raise UserError(f"unit_size must be above 0, not {self.unit_size}", where=f"measure of {self.metric}")

    @property
    def of_scores(self) -> bool:
        """Whether it shows what the trial learned, and not its time, memory or operations."""
        return self.metric.startswith(LEARNED)

    def value(self, metrics: Mapping[str, float]) -> float:
        """Return (metrics[metric] - metrics[minus]) / unit_size; NaN if one of the two is missing."""
        subtrahend = metrics.get(self.minus, math.nan) if self.minus else 0.0
        return (metrics.get(self.metric, math.nan) - subtrahend) / self.unit_size

    def of_column(self, label: str) -> Measure:
        """Return the measure of one of `columns`."""
        own = self.columns[label]
        return replace(self, columns={}, **({"metric": own} if isinstance(own, str) else own))

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], where: str = "measure") -> Measure:
        values = _known(cls, data, where)
        if values.get("beside") is not None:
            values["beside"] = cls.from_mapping(values["beside"], f"{where}.beside")
        return cls(**values)


def described(
    measure: Measure, measures: Mapping[str, Measure], columns: Sequence[tuple[str, str]], title: str = ""
) -> str:
    """Return the text in brackets after a title: "%", or "%; Pearson correlation: STS-B" if the columns differ.

    `measure` is that of the columns that `measures` does not name. A name that the title contains is not repeated.
    """
    parts: dict[str, list[str]] = {}
    for key, label in columns:
        shown = measures.get(key, measure)
        name = "" if shown.name in title else shown.name
        text = ", ".join(part for part in (name, shown.unit) if part)
        parts.setdefault(text, []).append(label if key in measures else "")
    if len(parts) == 1:
        return next(iter(parts))
    return "; ".join(f"{text}: {', '.join(labels)}" if any(labels) else text for text, labels in parts.items() if text)


@dataclass(frozen=True)
class Rule:
    """The rule that selects the reported setting of a search: the best mean of `metric` (on dev) over its seeds.

    seeds: how many of the first seeds settings are compared at; the others have run the selected one alone. None: all.
    """

    metric: str = "dev/loss"
    mode: str = "min"
    seeds: int | None = None

    @property
    def text(self) -> str:
        """The rule in words."""
        best = "lowest" if self.mode == "min" else "highest"
        if self.seeds == 1:
            where = "of the first seed; the selected one alone runs the others"
            return f"Settings are selected by the {best} {self.metric} {where}."
        which = "seeds" if self.seeds is None else f"the first {self.seeds} seeds"
        return f"Settings are selected by the {best} mean {self.metric} over {which}."

    def __post_init__(self) -> None:
        require_known("mode", [self.mode], ("min", "max"), where="selection rule")
        if not self.metric.startswith("dev/"):
            raise UserError(f"settings cannot be selected by {self.metric!r}", where="selection rule", fix="use dev/…")


# In what a cell may differ from its published number; the first three are said in the cell itself.
ASPECTS = ("model", "precision", "method", "data", "protocol", "measure")
IN_CELL = ASPECTS[:3]


@dataclass(frozen=True)
class Flag:
    """A footnote on rows (blocks), on columns, or, if both are named, on their cells.

    Args:
        about: one of ASPECTS, of a note on what differs from the paper; with no rows and no columns it is on all cells.
    """

    note: str
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    about: str = ""

    def covers(self, row: str, column: str) -> bool:
        """Return whether it is on a cell. A column that sums the others up has what is on any of them."""
        return (not self.rows or row in self.rows) and (
            not self.columns or column in (*self.columns, AVERAGE, LARGEST, RANK)
        )

    def __post_init__(self) -> None:
        if not self.rows and not self.columns and not self.about:
            raise UserError(f"the flag {self.note!r} names no rows and no columns", fix="make it a footnote")

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], where: str = "flag") -> Flag:
        values = _known(cls, data, where)
        return cls(values["note"], tuple(values.get("rows", ())), tuple(values.get("columns", ())))


@dataclass(frozen=True)
class TableSpec:
    """The layout of one table.

    Args:
        name: a short name, for labels and file names.
        layout: name of the measure's layout, for a measure without a name of its own.
        measures: column key -> the measure of its cells, if not `measure`.
        rows, columns: (key, label) in printed order; the keys are values of `Record.block` and `Record.column`.
        searches: (column key, label) of the selected hyper-parameters, where columns show several measures of one
            search; () for all columns.
        published: reference to a paper's table, "prge/table2"; "" for none.
        published_rows, published_columns: block or column key -> its name in the published table. An unnamed column is
            looked up by its label; an unnamed block has no published numbers.
        altered: the cells (block, column) whose trials are not those of the grid as written, and those left out: no
            published number stands beside them.
        extents: cell -> (settings, seeds) of the grid as written.
        whole: whether all rows and columns of the grid as written are there: else no published rank stands.
        footnotes: lines printed below; caveats: the same, for conditions that differ from the paper's.
        average: whether to add a column with the mean over the columns.
        rank: whether to add a column with the mean over the columns of the row's rank; equal values share a rank.
        largest: whether to add a column with the largest value of the row.
        over: of a measure that compares rows: row -> the block that it is compared with; it need be no row.
        setting_of: row -> the block whose selected setting it shows, instead of the best of its own.
        may_differ: the facts of `core.place` in which its places differ by design: neither refused nor marked.
        beyond: of a ratio: a block whose value is subtracted from both; "" for none.
        shares: the columns that show the share of right test rows, for which a guess has a score too.
    """

    name: str
    title: str
    measure: Measure
    rows: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    searches: tuple[tuple[str, str], ...] = ()
    caption: str = ""
    rule: Rule = Rule()
    published: str = ""
    published_rows: Mapping[str, str] = field(default_factory=dict)
    published_columns: Mapping[str, str] = field(default_factory=dict)
    altered: frozenset[tuple[str, str]] = frozenset()
    extents: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    whole: bool = True
    footnotes: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    caveats: tuple[str, ...] = ()
    average: bool = False
    rank: bool = False
    measures: Mapping[str, Measure] = field(default_factory=dict)
    largest: bool = False
    over: Mapping[str, str] = field(default_factory=dict)
    beyond: str = ""
    may_differ: tuple[str, ...] = ()
    setting_of: Mapping[str, str] = field(default_factory=dict)
    layout: str = ""
    shares: frozenset[str] = frozenset()

    @property
    def blocks(self) -> set[str]:
        """The blocks whose records the table needs: its rows, and those that they are compared with or follow."""
        return {*dict(self.rows), *self.over.values(), *self.setting_of.values(), *filter(None, [self.beyond])}

    def of(self, column: str) -> Measure:
        """Return the measure of a column's cells."""
        return self.measures.get(column, self.measure)

    def __post_init__(self) -> None:
        where, rows, columns = f"table {self.name!r}", dict(self.rows), dict(self.columns)
        for kind, pairs, keys in (("row", self.rows, rows), ("column", self.columns, columns)):
            if not pairs:
                raise UserError(f"no {kind}s", where=where)
            if len(keys) < len(pairs):
                raise UserError(f"a {kind} stands twice: {', '.join(key for key, _ in pairs)}", where=where)
        require_known("fact of a place", self.may_differ, FACTS, where=where)
        check_over(self.measure, self.over, [*rows], where=where)
        require_known("row", chain(self.published_rows, *(flag.rows for flag in self.flags)), rows, where=where)
        marked = chain(self.published_columns, *(flag.columns for flag in self.flags))
        require_known("column", marked, columns, where=where)


def check_over(measure: Measure | None, over: Mapping[str, str], rows: Sequence[str], *, where: str) -> None:
    """Raise UserError unless every row of a ratio, and no other row, names the block that it is compared with."""
    require_known("row", over, rows, where=where)
    if measure is not None and (measure.ratio or measure.paired):
        for block in rows:
            if block not in over:
                raise UserError(f"row {block!r} names no block to compare with", where=where, fix="name it in `over`")
    elif over:
        raise UserError(
            "`over` is given, and the measure compares no rows", where=where, fix="use one with ratio or paired: true"
        )


def _known(cls: type[Any], data: Mapping[str, Any], where: str) -> dict[str, Any]:
    names = [item.name for item in fields(cls)]
    require_known("key", data, names, where=where)
    for item in fields(cls):
        if item.default is REQUIRED and item.default_factory is REQUIRED and data.get(item.name) is None:
            raise UserError(f"{item.name!r} is not given", where=where)
    return dict(data)
