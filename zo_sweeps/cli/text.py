"""Lines and listings that fit the terminal: nothing is cut, and no name, id or number is broken."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

from zo_sweeps.core.units import counted, visible

if TYPE_CHECKING:
    from rich.console import Console

INDENT = "  "
UNLIMITED = 100_000  # columns of a file or a pipe
GAP = "  "
NARROW = 10  # columns to which a text may be narrowed, or to its longest word
SOME = 4  # names in a sentence
NO_NUMBER = ("", "·", "–", "?")  # printed in a column of numbers where there is none


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


def console(file: TextIO | None = None) -> Console:
    """Return a console for what a command prints: as wide as COLUMNS says, or else as the terminal.

    A file or a pipe has room for every line.
    """
    from rich.console import Console  # here: boards and `--help` do without

    made = Console(file=file, highlight=False, emoji=False)
    if not made.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        made.width = UNLIMITED
    return made


def say(to: Console, text: str) -> None:
    """Print lines, wrapped between words."""
    for line in visible(text).split("\n"):
        to.print(wrapped(line, to.width), markup=False, soft_wrap=True)


def listing(to: Console, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their headers: columns of numbers to the right, all others to the left.

    The first layout that fits: a line per row; texts wrapped within their columns; the first cell on a line of its own,
    with the others below it; a block per row, with a line for each cell that says something.
    """
    if not rows:
        return
    rows = [[visible(cell) for cell in row] for row in rows]
    every = [list(headers), *rows]
    right = [i > 0 and all(_is_number(row[i]) for row in rows) for i in range(len(headers))]
    below = [row[1:] for row in every]
    if (whole := _columns(every, right, to.width)) is not None:
        printed = whole
    elif len(headers) > 1 and (rest := _columns(below, right[1:], to.width - len(INDENT))) is not None:
        indented = ([INDENT + line for line in lines] for lines in rest)
        printed = [[wrapped(row[0], to.width), *lines] for row, lines in zip(every, indented, strict=True)]
    else:
        printed = [[], *(_block(headers, cells, to.width) for cells in rows)]
    for i, lines in enumerate(printed):
        for line in lines:
            to.print(line, markup=False, soft_wrap=True, style=None if i else "bold")


def _columns(rows: Sequence[Sequence[str]], right: Sequence[bool], width: int) -> list[list[str]] | None:
    """Return the lines of each row, the texts of the widest columns wrapped as far as `width` and their longest words
    ask; None if that is not enough.
    """
    columns = list(zip(*rows, strict=True))
    widths = [_widest(column) for column in columns]
    least = [
        own if number else min(own, max(NARROW, *(len(word) for cell in column for word in cell.split())))
        for own, number, column in zip(widths, right, columns, strict=True)
    ]
    room = width - len(GAP) * (len(widths) - 1)
    while sum(widths) > room and widths != least:
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: widths[i])
        widths[widest] -= 1
    columns = [
        tuple("\n".join(wrapped(line, own, hanging="") for line in cell.split("\n")) for cell in column)
        for column, own in zip(columns, widths, strict=True)
    ]
    widths = [_widest(column) for column in columns]
    if sum(widths) > room:
        return None

    def line(texts: Sequence[str]) -> str:
        parts = zip(texts, widths, right, strict=True)
        return GAP.join(text.rjust(own) if number else text.ljust(own) for text, own, number in parts).rstrip()

    cells = [[cell.split("\n") for cell in row] for row in zip(*columns, strict=True)]
    return [[line(texts) for texts in zip_longest(*row, fillvalue="")] for row in cells]


def _widest(column: Sequence[str]) -> int:
    return max(len(line) for cell in column for line in cell.split("\n"))


def _block(headers: Sequence[str], cells: Sequence[str], width: int) -> list[str]:
    said = [(name, text) for name, text in zip(headers[1:], cells[1:], strict=True) if text not in NO_NUMBER]
    longest = max((len(name) for name, _ in said), default=0)
    hanging = " " * (longest + len(GAP))
    lines = [wrapped(cells[0], width)]
    for name, text in said:
        first, *more = text.split("\n")
        lines.append(wrapped(f"{INDENT}{name:{longest}}{GAP}{first}", width, hanging))
        lines += [wrapped(f"{INDENT}{hanging}{line}", width) for line in more]
    return lines


def _is_number(text: str) -> bool:
    return text in NO_NUMBER or ("\n" not in text and text.lstrip("+-−")[:1].isdigit())


def some(names: Sequence[str]) -> str:
    """Return the first few names, and how many follow: "RTE, CB, BoolQ and 4 more"."""
    if len(names) <= SOME:
        return ", ".join(names)
    return f"{', '.join(names[: SOME - 1])} and {len(names) - SOME + 1} more"


ALIKE = 0.6  # share of the words in which two sentences must agree


@dataclass
class Sentences:
    """Sentences of one pattern, and the things that any of them holds for, in order."""

    texts: list[str]
    holds: list[str]

    @property
    def text(self) -> str:
        """The first of the sentences, which stands for all."""
        return self.texts[0]

    @property
    def others(self) -> list[str]:
        """Of each further sentence, the first word that differs."""
        first = self.text.split()
        return [
            next(word for word, own in zip(text.split(), first, strict=True) if word != own).strip(",;:()")
            for text in self.texts[1:]
        ]


def grouped(lines: Mapping[str, Sequence[str]], *, apart: bool = False) -> list[Sentences]:
    """Return sentences, with the things that each holds for, as groups of one pattern, in the order of the first.

    `apart`: every sentence as a group of its own.
    """
    groups: list[Sentences] = []
    for text, holds in lines.items():
        alike = () if apart else (one for one in groups if _alike(one.text.split(), text.split()))
        group = next(iter(alike), None)
        if group is None:
            groups.append(Sentences([text], list(holds)))
        else:
            group.texts.append(text)
            group.holds += [one for one in holds if one not in group.holds]
    return groups


def say_group(to: Console, line: str, group: Sentences) -> None:
    """Print a line on a group, and how many sentences more it stands for."""
    say(to, line)
    if group.others:
        say(to, f"  likewise for {counted(len(group.others), 'other')}: {some(group.others)}")


def _alike(one: Sequence[str], other: Sequence[str]) -> bool:
    return len(one) == len(other) and sum(map(str.__eq__, one, other)) >= ALIKE * len(one)
