"""records x layout -> typed cells -> Markdown, LaTeX, CSV, HTML, plain text. Pure functions over plain data."""

from zo_sweeps.tables.build import build
from zo_sweeps.tables.cells import CellState, Table, TableCell
from zo_sweeps.tables.csv import to_csv
from zo_sweeps.tables.html import to_html
from zo_sweeps.tables.latex import to_latex
from zo_sweeps.tables.plain_text import to_markdown, to_text
from zo_sweeps.tables.records import Flag, Measure, Record, Rule, TableSpec

__all__ = [
    "CellState",
    "Flag",
    "Measure",
    "Record",
    "Rule",
    "Table",
    "TableCell",
    "TableSpec",
    "build",
    "to_csv",
    "to_html",
    "to_latex",
    "to_markdown",
    "to_text",
]
