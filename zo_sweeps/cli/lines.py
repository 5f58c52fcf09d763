"""Lines of text that fit a width, broken between words alone; and the line of the error that ends a command."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Callable
from io import TextIOWrapper
from shutil import get_terminal_size

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.units import visible

INDENT = "  "


def wrapped(line: str, width: int, hanging: str = INDENT) -> str:
    """Return a line broken between words to fit `width`; `hanging` follows its own indentation in the other lines."""
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


def ended(run: Callable[[], int]) -> int:
    """Return the exit status of `run`: its own, 2 after an error for the user (printed), 130 when interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # an encoding without "±" is no reason to stop a sweep
            stream.reconfigure(errors="replace")
    try:
        return run()
    except UserError as error:
        line = visible(f"zo_sweeps: {error}")
        print(wrapped(line, get_terminal_size().columns) if sys.stderr.isatty() else line, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `zo-sweeps table | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
