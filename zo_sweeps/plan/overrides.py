"""The command line's overrides, held against what the rows and columns of a grid promise.

A printed row has the values that its block fixes, and a printed column its own. An override of such a key keeps the
rows and columns that agree with it and leaves out the others, unless `grid.relabel=true` asks to run them under another
label. An axis over any other key than a searched one is a promise too: its row holds the listed values and no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zo_sweeps.config.command_line import PLACE, Forced
from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import AMOUNTS, AXES, LENGTH, SEARCHED, WHOLE, GridConfig
from zo_sweeps.core.errors import UserError
from zo_sweeps.plan.visible_rows import shown

RELABEL = "grid.relabel=true"


@dataclass(frozen=True)
class Promise:
    """The values of a block at one column, as the grid has them.

    Args:
        of_block, of_column, of_both: the fixed values of the block, of the column, and of the block at that column
            (`per_task`); a list in `of_both` is an axis.
        axes: the axes of the block and of the grid, as lists of values.
        task: the column's task.
    """

    of_block: Mapping[str, Any]
    of_column: Mapping[str, Any]
    of_both: Mapping[str, Any]
    axes: Mapping[str, Sequence[Any]]
    task: str

    def allowed(self, composer: Composer, key: str) -> tuple[Sequence[Any] | None, str]:
        """Return (values that the key may have, what promises them); None: any value."""
        fixed = {name: value for name, value in self.of_both.items() if not isinstance(value, list)}
        for source, values in (("cell", fixed), ("column", self.of_column), ("row", self.of_block)):
            if key in values:
                free = key in AMOUNTS and not (key == LENGTH and source == "column")
                return (None, "") if free else ([_name(composer, key, values[key])], source)
            group, _, option = key.partition(".")
            if option and group in WHOLE and group in values:
                return [], source
            if key in AXES and "method" in values:
                implied = composer.member_of(values["method"], key)
                return (None, "") if implied is None else ([implied], source)
        axes = {**self.axes, **{name: values for name, values in self.of_both.items() if name not in fixed}}
        if key in axes and key not in (*SEARCHED, "task"):
            return [_name(composer, key, value) for value in axes[key]], "row"
        return None, ""


@dataclass
class Overrides:
    """The overrides of a grid's trials, and what they leave out or rename.

    Attributes:
        renamed: block or column -> the overrides that it is labelled with.
    """

    composer: Composer
    renamed: dict[str, list[str]] = field(default_factory=dict)
    _left_out: dict[str, list[tuple[str, str, str]]] = field(
        default_factory=dict
    )  # override -> (source, block, column)
    _kept: set[str] = field(default_factory=set)

    @property
    def forced(self) -> Forced:
        return self.composer.forced

    def at(self, promise: Promise, block: str, column: str) -> Forced | None:
        """Return the overrides with the values that a block at a column may have; None: nothing agrees with it."""
        choices, values = dict(self.forced.choices), dict(self.forced.values)
        clashes = []
        for given in (choices, values):
            for key, wanted in list(given.items()):
                allowed, source = promise.allowed(self.composer, key)
                if allowed is None:
                    continue
                wanted = (promise.task,) if key == "task" else wanted
                agreeing = tuple(one for one in wanted if _name(self.composer, key, one) in allowed)
                if self.composer.run.grid.relabel:
                    if len(agreeing) < len(wanted):
                        self._rename(column if source == "column" else block, _text(key, wanted))
                elif agreeing:
                    given[key] = agreeing
                else:
                    clashes.append((_text(key, wanted), source))
        for text, source in clashes:
            self._left_out.setdefault(text, []).append((source, block, column))
        if clashes:
            return None
        self._kept.add(block)
        return Forced(choices, values)

    def _rename(self, what: str, text: str) -> None:
        texts = self.renamed.setdefault(what, [])
        if text not in texts:
            texts.append(text)

    def label(self, what: str, label: str) -> str:
        """Return the label of a block or column, with the overrides that changed what it promises."""
        return " → ".join([label, *([" ".join(self.renamed[what])] if what in self.renamed else [])])

    def kept(self, grid: GridConfig) -> GridConfig:
        """Return the grid without the blocks that the overrides leave no column of, the others under their new labels.

        Raises UserError if no block is left.
        """
        gone = {block for places in self._left_out.values() for _, block, _ in places} - self._kept
        if gone == {*grid.blocks}:
            raise UserError(
                f"no row of grid {grid.name} agrees with {' '.join(self._left_out)}",
                where=PLACE,
                fix=f"leave it out, or add {RELABEL} to run the rows so, under other labels",
            )
        blocks = {
            name: replace(block, label=self.label(name, grid.label(name)))
            for name, block in grid.blocks.items()
            if name not in gone
        }
        left = shown(replace(grid, blocks=blocks), gone)
        tables = {name: replace(table, rows=self._labels(table.rows)) for name, table in left.tables.items()}
        figures = {name: replace(figure, series=self._labels(figure.series)) for name, figure in left.figures.items()}
        return replace(left, tables=tables, figures=figures)

    def _labels(self, rows: Mapping[str, str]) -> dict[str, str]:
        return {block: self.label(block, label) if label else "" for block, label in rows.items()}

    def notes(self, grid: GridConfig, labels: Mapping[str, str]) -> Iterator[str]:
        """Yield one line per override that left rows or columns out."""
        for text, places in self._left_out.items():
            of_column = {column: labels.get(column, column) for source, _, column in places if source == "column"}
            rows = {grid.label(block): None for source, block, _ in places if source == "row"}
            cells = {
                f"{grid.label(block)} at {labels.get(column, column)}": None
                for source, block, column in places
                if source == "cell"
            }
            listed = "; ".join([*rows, *of_column.values(), *cells])
            yield f"{text} leaves out what fixes another value: {listed} ({RELABEL} runs them so, under other labels)"


def _name(composer: Composer, key: str, value: Any) -> Any:
    return composer.member_name(key, value) if key in AXES else value


def _text(key: str, values: Sequence[Any]) -> str:
    return f"{key}={','.join(f'{value:g}' if isinstance(value, float) else str(value) for value in values)}"
