"""A table as GitHub-flavoured Markdown, aligned in its raw text too."""

from __future__ import annotations

from collections.abc import Sequence

from zo_sweeps.core.units import visible
from zo_sweeps.tables.cells import Table
from zo_sweeps.tables.page import readable, together
from zo_sweeps.tables.text_cells import SELECTED, Grid, Text, footnotes, heading, main_grid, notes, selected_grid


def to_markdown(*tables: Table) -> str:
    """Render tables; what several of them share is printed once, below the last."""
    if len(tables) == 1:
        table = readable(tables[0])
        parts = [f"**{_escape(heading(table))}**", _grid(main_grid(table)), _below(footnotes(table), notes(table))]
        selected = selected_grid(table)
        parts += [f"**{SELECTED}**", _grid(selected)] if selected else []
    else:
        page = together(tables)
        parts = [f"**{_escape(page.title)}**" if page.title else ""]
        for title, table in page.tables:
            parts += [f"**{_escape(title)}**", _grid(main_grid(table))]
        parts.append(_below(page.footnotes, page.notes))
        for title, grid in page.selected:
            parts += [f"**{_escape(title)}**", _grid(grid)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _below(marked: Sequence[Text], lines: Sequence[str]) -> str:
    """Return the lines below a table as a list; "" without any."""
    every = [*(f"[{note.marks[0]}] {_escape(note.text)}" for note in marked), *map(_escape, lines)]
    return "\n".join(f"- {line}" for line in every)


def _grid(grid: Grid) -> str:
    lines = [[_text(text) for text in line] for line in (grid.header, *grid.rows)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(grid.header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(line, widths) for line in (lines[0], rule, *lines[1:]))


def _line(texts: list[str], widths: list[int]) -> str:
    cells = [texts[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(texts[1:], widths[1:], strict=True))]
    return f"| {' | '.join(cells)} |"


def _text(text: Text) -> str:
    below = f" ({_escape('; '.join(text.below))})" if text.below else ""
    return _escape(text.text) + below + (f" [{','.join(text.marks)}]" if text.marks else "")


def _escape(text: str) -> str:
    text = visible(text)
    for character in "\\|*<`":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())
