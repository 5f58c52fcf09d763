"""A table as plain text for a terminal of a given width, and as GitHub-flavoured Markdown, aligned as text too."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from zo_sweeps.core.units import visible
from zo_sweeps.tables.cells import Table
from zo_sweeps.tables.page import printed
from zo_sweeps.tables.published import Published
from zo_sweeps.tables.text_cells import Grid, Text, main_grid

GAP = "  "
IN_CORNER = 36  # the longest heading that is printed in the empty cell above the rows
Cells = list[list[str]]  # a line of the table: each of its cells is a list of printed lines


def to_text(*tables: Table, width: int = 100) -> str:
    """Render tables aligned, without boxes, at most `width` wide if a single column fits in it.

    The first layout that fits: published numbers in brackets; below ours; the same, transposed. If none fits, the
    columns are split into groups, one below the other. What several tables share is printed once, below the last.
    """
    page = printed(tables)
    parts = [_wrap(page.title, width)] if page.title else []
    for title, table in page.tables:
        grid = main_grid(table)
        if len(tables) == 1:
            parts += [_wrap(title, width), _fit(grid, width)]
        elif len(title) <= IN_CORNER:
            parts.append(_fit(Grid((Text(title), *grid.header[1:]), grid.rows), width))
        else:
            parts.append(f"{_wrap(title, width)}\n{_fit(grid, width)}")
    if below := [*(f"[{note.marks[0]}] {note.text}" for note in page.footnotes), *page.notes]:
        parts.append("\n".join(_wrap(line, width) for line in below))
    return "\n\n".join([*parts, *(_selected(title, grid, width) for title, grid in page.selected)]) + "\n"


def _selected(title: str, grid: Grid, width: int) -> str:
    """Return the selected hyper-parameters: of a single column as a sentence, "Title: row: lr 0.3, q 4; …"."""
    if len(grid.header) > 2:
        return f"{title}\n{_fit(grid, width)}"
    rows = "; ".join(f"{row.text} = {value.text}" for row, value in grid.rows)
    return _wrap(f"{title}: {rows}", width)


def published_to_text(table: Published, width: int = 100) -> str:
    """Render a paper's own table, at most `width` wide if a single column fits in it, with its conditions and notes."""
    header = (Text(""), *map(Text, table.columns))
    rows = []
    for name, values in table.rows.items():
        stds = {column: std for column, std in table.std.get(name, {}).items() if std is not None}
        texts = {column: "–" if value is None else str(value) for column, value in values.items()}
        rows.append((Text(name), *(Text(text + (f" ± {stds[c]}" if c in stds else "")) for c, text in texts.items())))
    spread = f"±: {table.std_kind} ({table.std_note})" if table.std else ""
    conditions = "; ".join(f"{_words(name)}: {_words(value)}" for name, value in (table.conditions or {}).items())
    notes = [
        _wrap(text, width) for text in (spread, conditions, *(f.note for f in table.flags), *table.footnotes) if text
    ]
    title = _wrap(f"{table.label}. {table.caption} ({table.unit}).", width)
    return (
        "\n\n".join(part for part in (title, _fit(Grid(header, tuple(rows)), width), "\n".join(notes)) if part) + "\n"
    )


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_words(name)} {_words(part)}" for name, part in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_words, value))
    return str(value).replace("_", " ")


def _fit(grid: Grid, width: int) -> str:
    lines = (grid.header, *grid.rows)
    stacked = [[[_own(text), *text.below] for text in line] for line in lines]
    bracketed = [
        [[_own(text) + (f" ({'; '.join(text.below)})" if text.below else "")] for text in line] for line in lines
    ]
    transposed = [list(line) for line in zip(*stacked, strict=True)]
    for cells in (bracketed, stacked, transposed):
        if _width(cells) <= width:
            return _aligned(cells)
    groups: list[list[int]] = []
    for column in range(1, len(stacked[0])):
        if groups and _width(_columns(stacked, [*groups[-1], column])) <= width:
            groups[-1].append(column)
        else:
            groups.append([column])
    return "\n\n".join(_aligned(_columns(stacked, group)) for group in groups)


def _own(text: Text) -> str:
    return " ".join(visible(text.text).split()) + (f" [{','.join(text.marks)}]" if text.marks else "")


def _columns(cells: list[Cells], columns: list[int]) -> list[Cells]:
    return [[line[0], *(line[column] for column in columns)] for line in cells]


def _widths(cells: list[Cells]) -> list[int]:
    return [max(len(text) for line in cells for text in line[column]) for column in range(len(cells[0]))]


def _width(cells: list[Cells]) -> int:
    widths = _widths(cells)
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _aligned(cells: list[Cells]) -> str:
    widths = _widths(cells)
    rows = []
    for i, line in enumerate(cells):
        for texts in zip_longest(*line, fillvalue=""):
            rows.append([texts[0].ljust(widths[0]), *map(str.rjust, texts[1:], widths[1:])])
        if i == 0:
            rows.append(["-" * width for width in widths])
    return "\n".join(GAP.join(row).rstrip() for row in rows)


def _wrap(text: str, width: int) -> str:
    text = visible(text)
    return textwrap.fill(text, max(20, width), subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def to_markdown(*tables: Table) -> str:
    """Render tables as GitHub-flavoured Markdown; what several of them share is printed once, below the last."""
    page = printed(tables)
    parts = [f"**{_escape(page.title)}**" if page.title else ""]
    for title, table in page.tables:
        parts += [f"**{_escape(title)}**", _markdown_grid(main_grid(table))]
    below = [*(f"[{note.marks[0]}] {_escape(note.text)}" for note in page.footnotes), *map(_escape, page.notes)]
    parts.append("\n".join(f"- {line}" for line in below))
    for title, grid in page.selected:
        parts += [f"**{_escape(title)}**", _markdown_grid(grid)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _markdown_grid(grid: Grid) -> str:
    lines = [[_markdown_text(text) for text in line] for line in (grid.header, *grid.rows)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(grid.header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_markdown_line(line, widths) for line in (lines[0], rule, *lines[1:]))


def _markdown_line(texts: list[str], widths: list[int]) -> str:
    cells = [texts[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(texts[1:], widths[1:], strict=True))]
    return f"| {' | '.join(cells)} |"


def _markdown_text(text: Text) -> str:
    below = f" ({_escape('; '.join(text.below))})" if text.below else ""
    return _escape(text.text) + below + (f" [{','.join(text.marks)}]" if text.marks else "")


def _escape(text: str) -> str:
    text = visible(text)
    for character in "\\|*<`":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())
