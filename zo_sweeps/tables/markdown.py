"""A table as GitHub-flavoured Markdown, aligned in its raw text too."""

from __future__ import annotations

from zo_sweeps.tables.cells import Table
from zo_sweeps.tables.text_cells import SELECTED, Grid, Text, footnotes, heading, main_grid, notes, selected_grid


def to_markdown(table: Table) -> str:
    parts = [f"**{_escape(heading(table))}**", _grid(main_grid(table))]
    marked = [f"[{note.marks[0]}] {_escape(note.text)}" for note in footnotes(table)]
    lines = [*marked, *(_escape(note) for note in notes(table))]
    if lines:
        parts.append("\n".join(f"- {line}" for line in lines))
    selected = selected_grid(table)
    if selected:
        parts += [f"**{SELECTED}**", _grid(selected)]
    return "\n\n".join(parts) + "\n"


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
    for character in "\\|*<`":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())
