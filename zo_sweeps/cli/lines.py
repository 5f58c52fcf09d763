"""Lines of text that fit a width: broken between words, never within a name, an id or a number."""

from __future__ import annotations

import re
import textwrap

INDENT = "  "


def wrapped(line: str, width: int, hanging: str = INDENT) -> str:
    """Return a line broken between words where it is wider than `width`.

    Args:
        hanging: what its continuation begins with, after the line's own indentation.
    """
    if len(line) <= width:
        return line
    start = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line.strip(),
        width,
        initial_indent=start,
        subsequent_indent=start + hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def columns_kept(text: str, width: int) -> str:
    """Return lines of the form "  name   text", each wrapped below the beginning of its text."""
    lines = []
    for line in text.splitlines():
        name = re.match(r" *\S.*? {2,}(?=\S)", line)
        body = len(line) - len(line.lstrip())
        hanging = " " * (name.end() - body) if name and name.end() < width / 2 else INDENT
        lines.append(wrapped(line, width, hanging))
    return "\n".join(lines)
