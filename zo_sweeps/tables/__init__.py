"""records x layout -> typed cells -> Markdown, LaTeX, CSV, HTML, plain text. Pure functions over plain data."""

from zo_sweeps.tables.build import build
from zo_sweeps.tables.cells import CellState, Table, TableCell
from zo_sweeps.tables.html import to_html
from zo_sweeps.tables.records import Flag, Measure, Record, Rule, TableSpec
from zo_sweeps.tables.renderings import to_csv, to_latex, to_markdown, to_text

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
