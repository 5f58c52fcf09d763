"""The command line's overrides, held against what the rows and columns of a grid promise.

A printed row has the values that its block fixes, and a printed column its own. An override of such a key keeps the
rows and columns that agree with it and leaves out the others, unless `grid.relabel=true` asks to run them under another
label. An axis over any other key than a searched one is a promise too: its row holds the listed values and no others.
So are the method that the whole grid fixes and the members that it chooses, and what computes a row that names its
device (its runtime and the form of its programs). A choice whose member has no such option as
a row or column fixes (a Gaussian has no pool of 2^12 numbers) does not agree with that row or column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zo_sweeps.config.command_line import PLACE, Forced
from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import (
    AMOUNTS,
    AXES,
    LENGTH,
    METHOD,
    OF_DEVICE,
    SEARCHED,
    WHOLE,
    GridConfig,
    GridDifference,
)
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import options
from zo_sweeps.tables.records import ASPECTS


def shown(grid: GridConfig, left_out: Collection[str]) -> GridConfig:
    """Return the grid without the rows and series of removed blocks, and without tables and figures left empty.

    Args:
        left_out: the blocks and columns that the command line removed.

    Raises UserError for a block or column that the grid never had, a difference about nothing known, and a table
    with published numbers and without rows.
    """

    columns = [*(grid.columns or grid.axes.get("task", []))]

    def left(kind: str, names: Iterable[str], known: Collection[str], where: str) -> list[str]:
        """Return the blocks or columns that are left."""
        for name in names:
            if name not in known and name not in left_out:
                raise unknown(kind, name, known, where=f"{where} of grid {grid.name}")
        return [name for name in names if name in known]

    def compared(rows: Mapping[str, str], over: Mapping[str, str], where: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the rows that are left, and `over` of them; of a ratio, both of its blocks are."""
        kept, others = left("block", rows, grid.blocks, where), left("block", [*over.values()], grid.blocks, where)
        pairs = {block: other for block, other in over.items() if block in kept and other in others}
        return {block: rows[block] for block in kept if block in pairs or not over}, pairs

    def differing(differs: Sequence[GridDifference], where: str) -> list[GridDifference]:
        """Return the differences that are on a row and a column that are left."""
        found = []
        for one in differs:
            if one.about not in ASPECTS:
                raise unknown("aspect", one.about, ASPECTS, where=f"{where}differs of grid {grid.name}")
            rows = left("block", one.rows, grid.blocks, f"{where}differs")
            places = left("column", one.columns, columns, f"{where}differs")
            if bool(rows) == bool(one.rows) and bool(places) == bool(one.columns):
                found.append(replace(one, rows=rows, columns=places))
        return found

    for name, block in grid.blocks.items():
        left("block", filter(None, [block.setting_of]), grid.blocks, f"setting_of in block {name}")
    tables, figures = {}, {}
    for name, table in grid.tables.items():
        if not table.rows:
            if table.published:
                fix = "list them as block: name"
                raise UserError(f"table {name!r} has no rows", where=f"grid {grid.name}", fix=fix)
            table = replace(table, rows=dict.fromkeys(grid.blocks, ""))
        if table.against:
            pairs = {block: label for block, label in table.rows.items() if block != table.against}
            table = replace(table, rows=pairs, over=dict.fromkeys(pairs, table.against), against="")
        rows, over = compared(table.rows, table.over, f"table {name}")
        left("block", filter(None, [table.beyond]), grid.blocks, f"table {name}")
        if rows and table.beyond not in left_out:
            tables[name] = replace(table, rows=rows, over=over, differs=differing(table.differs, f"table {name}, "))
    for name, figure in grid.figures.items():
        series, over = compared(figure.series, figure.over, f"figure {name}")
        gone = [*left_out, *({*figure.series} - {*series})]
        points = [p for p in figure.published if not isinstance(p, Mapping) or p.get("series") not in gone]
        if series or not figure.series:
            differs = differing(figure.differs, f"figure {name}, ")
            figures[name] = replace(figure, series=series, published=points, over=over, differs=differs)
    return replace(grid, tables=tables, figures=figures, differs=differing(grid.differs, ""))


RELABEL = "grid.relabel=true"


@dataclass(frozen=True)
class Promise:
    """The values of a block at one column, as the grid has them.

    Args:
        of_grid: the fixed values of the grid.
        of_block, of_column, of_both: the fixed values of the block, of the column, and of the block at that column
            (`per_task`); a list in `of_both` is an axis.
        axes: the axes of the block and of the grid, as lists of values.
        task: the column's task.
    """

    of_grid: Mapping[str, Any] = field(default_factory=dict)
    of_block: Mapping[str, Any] = field(default_factory=dict)
    of_column: Mapping[str, Any] = field(default_factory=dict)
    of_both: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    task: str = ""

    def allowed(self, composer: Composer, key: str) -> tuple[Sequence[Any] | None, str]:
        """Return (values that the key may have, what promises them); None: any value."""
        for source, values in self._sources:
            if key in values:
                free = key in AMOUNTS and not (key == LENGTH and source == "column")
                return (None, "") if free else ([_name(composer, key, values[key])], source)
            group, _, option = key.partition(".")
            if option and group in WHOLE and group in values:
                return [], source
            if key in AXES and "method" in values:
                implied = composer.member_of(values["method"], key)
                return (None, "") if implied is None else ([implied], source)
            if key in OF_DEVICE and "device" in values:
                return [composer.trial_part({"device": values["device"]})[group][option]], source
        axes = {**self.axes, **{name: value for name, value in self.of_both.items() if isinstance(value, list)}}
        if key in axes and key not in (*SEARCHED, "task"):
            return [_name(composer, key, value) for value in axes[key]], "row"
        return None, ""

    def without_option(self, composer: Composer, key: str, value: Any) -> str:
        """Return the source of a fixed option that no member has once `key` chooses `value`; "" if there is none.

        An option that the grid's own member does not have either (the density of a column, in a full space) is none.
        """
        for source, values in self._sources:
            for path in values:
                axis, _, option = path.partition(".")
                if option and axis in AXES:
                    before, after = (self._members(composer, axis, changed) for changed in ({}, {key: value}))
                    if _have(axis, before, option) and not _have(axis, after, option):
                        return source
        return ""

    @property
    def of_row(self) -> list[str]:
        """The keys that a row promises: of the block, of its cell, and the method that the whole grid fixes."""
        searched = {name for name in SEARCHED if isinstance(self.of_both.get(name), list) or name in self.axes}
        axes = [name for name in self.axes if name != "task"]
        keys = [*(name for name in self.of_grid if name in METHOD), *self.of_block, *self.of_both, *axes]
        return [key for key in keys if key not in (*AMOUNTS, *searched)]

    @property
    def of_column_alone(self) -> list[str]:
        """The keys that a column promises, and no cell of its own replaces."""
        return [key for key in self.of_column if key not in self.of_both and (key not in AMOUNTS or key == LENGTH)]

    @property
    def _sources(self) -> list[tuple[str, Mapping[str, Any]]]:
        """What promises values, and the values, the most specific first."""
        fixed = {name: value for name, value in self.of_both.items() if not isinstance(value, list)}
        methods = {name: value for name, value in self.of_grid.items() if name in METHOD}
        return [("cell", fixed), ("column", self.of_column), ("row", self.of_block), ("row", methods)]

    def _members(self, composer: Composer, axis: str, changed: Mapping[str, Any]) -> set[str | None]:
        """Return the members of an axis with some of the choices changed; None for trials that do not use the axis."""
        values = {**self.of_grid, **self.axes, **self.of_block, **self.of_column, **self.of_both, **changed}
        if axis in values:
            return {composer.member_name(axis, str(name)) for name in _listed(values[axis])}
        return {composer.member_of(str(name), axis) for name in _listed(values.get("method", []))}


@dataclass
class Overrides:
    """The overrides of a grid's trials, and what they leave out."""

    composer: Composer
    # override -> (source, block, column)
    _left_out: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    _kept: set[str] = field(default_factory=set)

    def at(self, promise: Promise, block: str, column: str) -> Forced | None:
        """Return the overrides with the values that a block at a column may have; None: nothing agrees with it."""
        given = dict(self.composer.forced)
        if self.composer.run.grid.relabel:
            return given
        clashes = []
        for key, wanted in self.composer.forced.items():
            wanted = (promise.task,) if key == "task" else wanted
            allowed, promised = promise.allowed(self.composer, key)
            named = tuple(one for one in wanted if allowed is None or _name(self.composer, key, one) in allowed)
            lost = [promise.without_option(self.composer, key, one) if key in METHOD else "" for one in named]
            agreeing = tuple(one for one, source in zip(named, lost, strict=True) if not source)
            sources = {*([promised] if len(named) < len(wanted) else []), *filter(None, lost)}
            if sources and agreeing:
                given[key] = agreeing
            else:
                clashes += [(text_of(key, wanted), source) for source in sorted(sources)]
        for text, source in clashes:
            self._left_out.setdefault(text, []).append((source, block, column))
        if clashes:
            return None
        self._kept.add(block)
        return given

    def leaves_out(self, key: str) -> bool:
        """Return whether an override of this key left a row or column out."""
        return any(text.partition("=")[0] == key for text in self._left_out)

    def kept(self, grid: GridConfig) -> GridConfig:
        """Return the grid without the blocks that the overrides leave no column of.

        Raises UserError if no block is left.
        """
        gone = {block for places in self._left_out.values() for _, block, _ in places} - self._kept
        if gone == {*grid.blocks}:
            raise UserError(
                f"no row of grid {grid.name} agrees with {' '.join(self._left_out)}",
                where=PLACE,
                fix=f"leave it out, or add {RELABEL} to run the rows so, under other labels",
            )
        blocks = {name: block for name, block in grid.blocks.items() if name not in gone}
        return shown(replace(grid, blocks=blocks), gone)

    def notes(self, row: Callable[[str], str], labels: Mapping[str, str]) -> Iterator[str]:
        """Yield one line per override that left rows or columns out.

        Args:
            row: block -> its printed name. labels: column -> its printed name.
        """
        for text, places in self._left_out.items():
            of_column = {column: labels.get(column, column) for source, _, column in places if source == "column"}
            rows = {row(block): None for source, block, _ in places if source == "row"}
            cells = {
                f"{row(block)} at {labels.get(column, column)}": None
                for source, block, column in places
                if source == "cell"
            }
            listed = "; ".join([*rows, *of_column.values(), *cells])
            yield f"{text} leaves out what fixes another value: {listed} ({RELABEL} runs them so, under other labels)"


def _name(composer: Composer, key: str, value: Any) -> Any:
    return composer.member_name(key, value) if key in AXES else value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _have(axis: str, members: Iterable[str | None], option: str) -> bool:
    """Return whether one of the members has an option; of an unknown member it is said when it is read."""
    name, known = option.partition(".")[0], registry.names(axis)
    return any(
        one not in known or name in {f.name for f in options(registry.member(axis, one))}
        for one in members
        if one is not None
    )


def text_of(key: str, values: Sequence[Any]) -> str:
    """Return an override as it is printed: "estimator.q=2,4"."""
    return f"{key}={','.join(map(short, values))}"


def short(value: Any) -> str:
    """Return a value as labels have it."""
    return f"{value:g}" if isinstance(value, float) else str(value)
