"""The texts that all renderers print: cells, headings and notes in plain Unicode. Renderers only escape and align."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from zo_sweeps.tables.cells import CellState, Table, TableCell
from zo_sweeps.tables.published import NOT_STATED, POPULATION, SAMPLE, Published
from zo_sweeps.tables.records import IN_CELL, Flag, Measure, described

EMPTY = {
    CellState.NOT_RUN: "–",
    CellState.NOT_PLANNED: "·",
    CellState.MISSING: "no data",
    CellState.DIVERGED: "diverged",
    CellState.OUT_OF_MEMORY: "OOM",
    CellState.FAILED: "failed",
    CellState.UNMEASURED: "not measured",
    CellState.NOT_COMPARABLE: "not comparable",
    CellState.NOT_REACHED: "not reached",
    CellState.PLACES_DIFFER: "places differ",
}
LEGEND = {
    CellState.NOT_RUN: "–: not run",
    CellState.NOT_PLANNED: "·: not in this grid",
    CellState.IN_PROGRESS: "k/m: k of the cell's m trials have a result",
    CellState.DIVERGED: "diverged: the loss of every setting became non-finite",
    CellState.OUT_OF_MEMORY: "OOM: every setting ran out of memory",
    CellState.NOT_REACHED: "not reached: a seed of the selected setting did not reach the target on dev",
    CellState.PLACES_DIFFER: "places differ: no ratio, as its two sides were measured in different places",
    CellState.FAILED: "failed: every trial ended in an error or was lost",
}
SELECTED = "Selected hyper-parameters"
SMALL = 10  # seeds; from here on, sample and population standard deviation differ by 5 % at most
ARROWS = {"smallest": "↓", "largest": "↑"}


@dataclass(frozen=True)
class Text:
    """A text, its footnote marks ("a", "b", …), and further texts, printed in brackets or in lines below it.

    key: which row or column it labels, where another may have the same label; "": not told apart.
    """

    text: str
    marks: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    key: str = ""


@dataclass(frozen=True)
class Grid:
    """Heading, labels and cells of a printed table: header[0] heads the labels; every row starts with its label."""

    header: tuple[Text, ...]
    rows: tuple[tuple[Text, ...], ...]


def letters(marks: Iterable[int]) -> tuple[str, ...]:
    """Return footnote marks as letters: 0 -> a, …, 25 -> z, 26 -> aa, …"""
    return tuple((chr(97 + mark // 26 - 1) if mark > 25 else "") + chr(97 + mark % 26) for mark in marks)


def signed(number: float, digits: int) -> str:
    """Return +1.0, −1.0 (with a minus sign, not a hyphen), and 0.0 for a number that rounds to zero."""
    text = f"{number:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def plain(value: Any) -> str:
    """Return a hyper-parameter as papers print it: 1e-7, 0.0001, 4, both."""
    if not isinstance(value, float):
        return str(value)
    text = f"{value:g}"
    mantissa, exponent, power = (text if float(text) == value else repr(value)).partition("e")
    return f"{mantissa}e{int(power)}" if exponent else mantissa


def value_text(cell: TableCell, table: Table, column: str = "") -> str:
    """Return `91.2 ± 0.4`, with n if it differs between cells, and k/m until the search is finished.

    Beside a published standard deviation, a cell of few seeds has both of its own: `91.2 ± 0.4 / 0.3`.
    """
    measure = table.spec.of(column)
    if cell.state is CellState.IN_PROGRESS:
        return f"{cell.finished}/{cell.planned}"
    if cell.mean is None:
        return EMPTY[cell.state]
    text = _number(cell.mean, measure, cell.digits)
    if measure.paired:
        text = signed(cell.mean, measure.digits)
        if cell.interval:
            text += f" [{', '.join(signed(end, measure.digits) for end in cell.interval)}]"
    if cell.std is not None:
        text += f" ± {_number(cell.std, measure)}"
        if cell.population_std is not None and _has_both(cell):
            text += f" / {_number(cell.population_std, measure)}"
        if len(_sizes(table)) > 1:
            text += f" (n={cell.n})"
    if cell.state is CellState.PARTIAL:
        text += f" {cell.finished}/{cell.planned}"
    return text


def below_texts(cell: TableCell, table: Table, column: str = "") -> tuple[str, ...]:
    """Return `pub. 92.2 ± 0.5, −1.0` (published value, and the difference if we have one), then any second measure.

    A published value of another model, precision or method is followed by `, other precision`.
    """
    measure, texts = table.spec.of(column), []
    if cell.published is not None:
        difference = "" if cell.difference is None else f", {signed(cell.difference, measure.digits)}"
        spread = "" if cell.published_std is None else f" ± {_number(cell.published_std, measure)}"
        other = [name for name in IN_CELL if any(flag.about == name for flag in cell.differs)]
        differs = f", other {' and '.join(other)}" if other else ""
        texts.append(f"pub. {_number(cell.published, measure, cell.digits)}{spread}{difference}{differs}")
    if measure.beside and cell.beside is not None:
        texts.append(f"{_number(cell.beside, measure.beside)} {measure.beside.unit}")
    return tuple(texts)


def main_grid(table: Table) -> Grid:
    numbers = {note: number for number, note in enumerate(table.footnotes)}

    def marks(notes: Iterable[str]) -> tuple[str, ...]:
        return letters(sorted(numbers[note] for note in notes if note in numbers))

    header = (Text(""), *(Text(label, marks(table.column_notes[key])) for key, label in table.columns))
    rows = []
    for block, label in table.rows:
        cells = ((key, table.cells[block, key]) for key, _ in table.columns)
        texts = (Text(value_text(c, table, key), marks(c.notes), below_texts(c, table, key)) for key, c in cells)
        rows.append((Text(label, marks(table.row_notes[block])), *texts))
    return Grid(header, tuple(rows))


def selected_grid(table: Table) -> Grid | None:
    """Return the selected hyper-parameters: "0.0005 · 4 · 4", the axes in the row's label; None without a search."""
    searches = table.spec.searches or table.columns
    columns = [
        (key, Text(label, key=str(i)))
        for i, (key, label) in enumerate(searches)
        if any(table.cells[block, key].selected for block, _ in table.rows)
    ]
    rows = []
    for block, label in table.rows:
        cells = [table.cells[block, key] for key, _ in columns]
        axes = list(dict.fromkeys(axis for cell in cells for axis in cell.selected))
        if axes:
            values = (Text(_selected(cell, axes)) for cell in cells)
            rows.append((Text(f"{label}: {' · '.join(_short(axes))}", key=block), *values))
    header = (Text(""), *(label for _, label in columns))
    return Grid(header, tuple(rows)) if rows else None


def _selected(cell: TableCell, axes: list[str]) -> str:
    if not cell.selected:
        return "–"
    return " · ".join(plain(cell.selected.get(axis, "–")) + ARROWS.get(cell.edges.get(axis, ""), "") for axis in axes)


def _short(axes: list[str]) -> list[str]:
    """Shorten update.lr to lr, unless two axes end in the same word."""
    tails = [axis.rpartition(".")[2] for axis in axes]
    return [tail if tails.count(tail) == 1 else axis for tail, axis in zip(tails, axes, strict=True)]


def title_and_unit(table: Table) -> str:
    """Return `Title (unit)`."""
    spec = table.spec
    unit = described(spec.measure, spec.measures, spec.columns, spec.title)
    return f"{spec.title} ({unit})" if unit else spec.title


def heading(table: Table) -> str:
    parts = [title_and_unit(table), table.spec.caption, table.spec.measure.definition]
    return " ".join(f"{part.rstrip('.')}." for part in parts if part)


def footnotes(table: Table) -> list[Text]:
    return [Text(note, letters((i,))) for i, note in enumerate(table.footnotes)]


def notes(table: Table) -> list[str]:
    """Return the unmarked lines below the table: its own, and the legend."""
    return [*own_notes(table), *legend([table])]


def own_notes(table: Table) -> list[str]:
    """Return the lines on the table, caveats first: they decide whether it may be compared at all."""
    spec, lines = table.spec, list(table.spec.caveats)
    lines.append(_spread(table))
    if any(cell.selected for cell in table.cells.values()):
        lines.append(spec.rule.text)
    lines.append(_guesses(table))
    if spec.rank:
        directions = {spec.of(key).better for key, _ in spec.columns}
        best = "best" if len(directions) > 1 else "highest" if directions == {"higher"} else "lowest"
        lines.append(f"Rank: mean rank over the columns, 1 for the {best} printed value; equal values share a rank.")
    if table.published is not None and any(cell.published is not None for cell in table.cells.values()):
        lines.append(f"pub.: {table.published.label}, and our value minus it.")
        lines += _published_spread(table, table.published)
        lines += [f"There: {note}." for note in table.published.footnotes]
    lines += [f"{capital(flag.note)}." for flag in spec.flags if _of_all(flag, table)]
    return [line for line in (*lines, *spec.footnotes) if line]


def _of_all(flag: Flag, table: Table) -> bool:
    """Return whether a difference from the paper has no mark: it is on all rows and columns, and said in no cell."""
    said = flag.about in IN_CELL and any(
        flag in cell.differs and cell.published is not None for cell in table.cells.values()
    )
    return bool(flag.about) and not (flag.rows or flag.columns or said)


def legend(tables: Sequence[Table]) -> list[str]:
    """Return the lines that explain how the cells of some tables are printed."""
    cells = [cell for table in tables for cell in table.cells.values()]
    states = {cell.state for cell in cells}
    if CellState.PARTIAL in states:
        states.add(CellState.IN_PROGRESS)  # both print k/m
    lines = ["; ".join(text for state, text in LEGEND.items() if state in states)]
    if any(cell.n == 1 for cell in cells):
        others = any(cell.mean is not None and cell.std is None and cell.n != 1 for cell in cells)
        unless = ", unless it is an average, a rank, a ratio or a difference" * others
        some = others or any(map(_sizes, tables))
        lines.insert(0, f"A value without ± is of one run{unless}." if some else "Every value is of one run.")
    return list(filter(None, lines))


def _spread(table: Table) -> str:
    sizes = _sizes(table)
    if not sizes:
        return ""
    n = f"n={next(iter(sizes))}" if len(sizes) == 1 else "n"
    kind = "sample / population" if any(_has_both(cell) for cell in table.cells.values()) else "sample"
    return f"Mean ± {kind} standard deviation over {n} seeds."


def _guesses(table: Table) -> str:
    """Return the line on the scores of guesses: `On the test rows, chance is 50.0 and the majority class 50.9.`"""
    columns = table.spec.columns
    texts = []
    for name, values in table.guesses.items():
        shown = {key: _number(value, table.spec.of(key)) for key, value in values.items()}
        same = len(shown) == len(columns) and len({*shown.values()}) == 1
        each = ", ".join(f"{label} {shown[key]}" for key, label in columns if key in shown)
        texts.append(f"{name} {next(iter(shown.values())) if same else each}")
    return f"A guess on the same test rows has: {'; '.join(texts)}." if texts else ""


def _has_both(cell: TableCell) -> bool:
    """Return whether a cell prints its sample and its population standard deviation."""
    return cell.published_std is not None and cell.std is not None and cell.n < SMALL


def _published_spread(table: Table, published: Published) -> list[str]:
    """Return the line that names the kind of the published standard deviations, and ours to hold against them."""
    cells = table.cells.values()
    if all(cell.published_std is None for cell in cells):
        return []
    ours = ""
    if any(_has_both(cell) for cell in cells):
        like = {SAMPLE: "our first one", POPULATION: "our second one"}.get(published.std_kind, "both of ours")
        ours = f": compare it with {like}"
    name = "a" if published.std_kind == NOT_STATED else f"the {published.std_kind}"
    note = f" ({published.std_note})" if published.std_note else ""
    return [f"There, ± is {name} standard deviation{note}{ours}."]


def _sizes(table: Table) -> set[int]:
    """Return the numbers of seeds of the cells with a spread."""
    return {cell.n for cell in table.cells.values() if cell.std is not None}


def _number(value: float, measure: Measure, digits: int | None = None) -> str:
    text = f"{value:.{measure.digits if digits is None else digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")
