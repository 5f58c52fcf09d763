"""A table as LaTeX, with booktabs and graphicx only. The published numbers are printed in a line below ours."""

from __future__ import annotations

from itertools import zip_longest

from zo_sweeps.core.units import visible
from zo_sweeps.tables.cells import Table
from zo_sweeps.tables.page import readable
from zo_sweeps.tables.text_cells import SELECTED, Grid, Text, footnotes, heading, main_grid, notes, selected_grid

PACKAGES = r"% in the preamble: \usepackage{booktabs,graphicx}"
_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "%": r"\%",
    "_": r"\_",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "ε": r"$\epsilon$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
    "’": "'",
}


def to_latex(*tables: Table) -> str:
    """Render each table as one `table` environment, below a comment that names the packages they need."""
    return "\n".join([PACKAGES, *(_environment(readable(table)) for table in tables)])


def _environment(table: Table) -> str:
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{escape(heading(table))}}}",
        rf"\label{{tab:{''.join(c if c.isascii() and c.isalnum() else '-' for c in table.spec.name)}}}",
        *_tabular(main_grid(table)),
    ]
    below = [*(_mark(note.marks) + " " + escape(note.text) for note in footnotes(table)), *map(escape, notes(table))]
    if below:
        lines += [r"\par\smallskip", r"\parbox{\linewidth}{\footnotesize " + " \\\\\n".join(below) + "}"]
    selected = selected_grid(table)
    if selected:
        lines += [r"\par\medskip", rf"{{\small {SELECTED}}}\par\smallskip", *_tabular(selected)]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def escape(text: str) -> str:
    """Escape the characters that LaTeX reads as commands or does not know, and show hidden ones."""
    return "".join(_ESCAPES.get(character, character) for character in visible(text))


def _tabular(grid: Grid) -> list[str]:
    """Render a grid, shrunk to the text's width if it is wider."""
    return [
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * (len(grid.header) - 1)}}}",
        r"\toprule",
        _line(grid.header),
        r"\midrule",
        *(line for row in grid.rows for line in _lines(row)),
        r"\bottomrule",
        r"\end{tabular}}",
    ]


def _line(texts: tuple[Text, ...]) -> str:
    return " & ".join(escape(text.text) + _mark(text.marks) for text in texts) + r" \\"


def _lines(row: tuple[Text, ...]) -> list[str]:
    """Render the row, and below it, in smaller type, the further lines of its cells."""
    below = [
        " & ".join(rf"\footnotesize {escape(text)}" if text else "" for text in texts) + r" \\"
        for texts in zip_longest(*(text.below for text in row), fillvalue="")
    ]
    return [_line(row), *below, *([r"\addlinespace"] if below else [])]


def _mark(marks: tuple[str, ...]) -> str:
    return rf"\textsuperscript{{{','.join(marks)}}}" if marks else ""
