"""A table as text: for a terminal of a given width, as GitHub-flavoured Markdown, as LaTeX (booktabs), and as CSV."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from zo_sweeps.core.units import visible
from zo_sweeps.tables.cells import Table
from zo_sweeps.tables.page import printed, readable
from zo_sweeps.tables.published import Published
from zo_sweeps.tables.records import Measure
from zo_sweeps.tables.text_cells import SELECTED, Grid, Text, footnotes, heading, main_grid, notes, selected_grid

GAP = "  "
MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\|*<`"})
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
    parts = [f"**{_markdown_escape(page.title)}**" if page.title else ""]
    for title, table in page.tables:
        parts += [f"**{_markdown_escape(title)}**", _markdown_grid(main_grid(table))]
    below = [
        *(f"[{note.marks[0]}] {_markdown_escape(note.text)}" for note in page.footnotes),
        *map(_markdown_escape, page.notes),
    ]
    parts.append("\n".join(f"- {line}" for line in below))
    for title, grid in page.selected:
        parts += [f"**{_markdown_escape(title)}**", _markdown_grid(grid)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _markdown_grid(grid: Grid) -> str:
    lines = [[_markdown_text(text) for text in line] for line in (grid.header, *grid.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    cells = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in (lines[0], rule, *lines[1:]))
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _markdown_text(text: Text) -> str:
    below = f" ({_markdown_escape('; '.join(text.below))})" if text.below else ""
    return _markdown_escape(text.text) + below + (f" [{','.join(text.marks)}]" if text.marks else "")


def _markdown_escape(text: str) -> str:
    return " ".join(visible(text).translate(MARKDOWN).split())


PACKAGES = r"% in the preamble: \usepackage{booktabs,graphicx}"
LATEX = str.maketrans(
    {
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
        "θ": r"$\theta$",
        "–": "--",
        "—": "---",
        "…": r"\ldots{}",
        "“": "``",
        "”": "''",
        "’": "'",
    }
)


def to_latex(*tables: Table) -> str:
    """Render each table as one `table` environment, below a comment that names the packages they need."""
    return "\n".join([PACKAGES, *(_latex_table(readable(table)) for table in tables)])


def _latex_table(table: Table) -> str:
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{latex_escape(heading(table))}}}",
        rf"\label{{tab:{''.join(c if c.isascii() and c.isalnum() else '-' for c in table.spec.name)}}}",
        *_latex_grid(main_grid(table)),
    ]
    below = [
        *(_latex_mark(note.marks) + " " + latex_escape(note.text) for note in footnotes(table)),
        *map(latex_escape, notes(table)),
    ]
    if below:
        text = " \\\\\n".join(map(_line_begin, below))
        lines += [r"\par\smallskip", rf"\parbox{{\linewidth}}{{\footnotesize {text}}}"]
    selected = selected_grid(table)
    if selected:
        lines += [r"\par\medskip", rf"{{\small {SELECTED}}}\par\smallskip", *_latex_grid(selected)]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def latex_escape(text: str) -> str:
    """Escape the characters that LaTeX reads as commands or does not know, and show hidden ones."""
    return visible(text).translate(LATEX)


def _latex_grid(grid: Grid) -> list[str]:
    """Render a grid, shrunk to the text's width if it is wider."""
    return [
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * (len(grid.header) - 1)}}}",
        r"\toprule",
        _latex_line(grid.header),
        r"\midrule",
        *(line for row in grid.rows for line in _latex_lines(row)),
        r"\bottomrule",
        r"\end{tabular}}",
    ]


def _latex_line(texts: tuple[Text, ...]) -> str:
    return _line_begin(" & ".join(latex_escape(text.text) + _latex_mark(text.marks) for text in texts)) + r" \\"


def _line_begin(line: str) -> str:
    r"""Return a line that may stand below another: the `\\` or rule before it would take a * or [ as its own option."""
    return "{}" + line if line.lstrip().startswith(("*", "[")) else line


def _latex_lines(row: tuple[Text, ...]) -> list[str]:
    """Render the row, and below it, in smaller type, the further lines of its cells."""
    below = [
        " & ".join(rf"\footnotesize {latex_escape(text)}" if text else "" for text in texts) + r" \\"
        for texts in zip_longest(*(text.below for text in row), fillvalue="")
    ]
    return [_latex_line(row), *below, *([r"\addlinespace"] if below else [])]


def _latex_mark(marks: tuple[str, ...]) -> str:
    return rf"\textsuperscript{{{','.join(marks)}}}" if marks else ""


HEADER = (
    *("table", "row", "column", "measure", "mean", "std", "n", "unit", "published", "difference", "state", "selected"),
    *("trial_ids", "finished", "planned", "block", "column_key", "notes", "std_population", "published_std"),
    *("published_std_kind", "differs", "settings", "settings_written", "seeds", "seeds_written", "places"),
    *("low", "high"),
)
FORMULA = ("=", "+", "-", "@", "\t", "\n", "\r")


def to_csv(*tables: Table) -> str:
    """Render tables as one CSV: a line per cell and measure, below one header.

    Numbers are in the unit of their line and in full precision, `selected` is JSON, ids are separated by spaces, and
    None is "". A measure that a cell prints in brackets has a line of its own, without deviations. The score of a guess
    on the same test rows has one without a block, a state and trials. A text that a spreadsheet would read as a formula
    begins with an apostrophe.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, HEADER, lineterminator="\n")
    writer.writeheader()
    for line in chain.from_iterable(map(_csv_lines, tables)):
        writer.writerow({name: _safe(value) if isinstance(value, str) else value for name, value in line.items()})
    return out.getvalue()


def _safe(text: str) -> str:
    """Return a text that no spreadsheet runs and that hides no character."""
    return visible(f"'{text}" if text.startswith(FORMULA) else text)


def _csv_lines(table: Table) -> Iterator[Mapping[str, Any]]:
    spec, rows = table.spec, dict(table.spec.rows)
    for block, label in table.rows:
        for key, column in table.columns:
            cell, measure, extent = table.cells[block, key], spec.of(key), table.cells[block, key].extent
            marked = {*cell.notes, *table.row_notes[block], *table.column_notes[key]}
            differs = [flag.note for flag in cell.differs]
            notes = [note for note in table.footnotes if note in marked and note not in differs]
            conditions = spec.caveats if block in rows else ()  # of others' rows, a footnote says what holds
            line = {
                "table": spec.name,
                "row": label,
                "column": column,
                "n": cell.n,
                "state": cell.state.value,
                "selected": json.dumps(dict(cell.selected), sort_keys=True) if cell.selected else "",
                "trial_ids": " ".join(cell.trial_ids),
                "finished": cell.finished,
                "planned": cell.planned,
                "block": block,
                "column_key": key,
                "notes": "; ".join([*notes, *conditions]),
                "differs": "; ".join(differs),
                "places": "; ".join(place.described for place in cell.places),
            }
            low, high = cell.interval or (None, None)
            std_kind = table.published.std_kind if table.published and cell.published_std is not None else ""
            own = {
                "std": cell.std,
                "low": low,
                "high": high,
                "std_population": cell.population_std,
                "published": None if cell.published is None else float(cell.published),
                "published_std": None if cell.published_std is None else float(cell.published_std),
                "published_std_kind": std_kind,
                "difference": cell.difference,
                "settings": extent and extent.settings,
                "settings_written": extent and extent.of_settings,
                "seeds": extent and extent.seeds,
                "seeds_written": extent and extent.of_seeds,
            }
            ranked = {"measure": "rank", "unit": "rank", "mean": cell.mean}
            yield {**line, **own, **(_csv_value(measure, cell.mean) if cell.digits is None else ranked)}
            if measure.beside and cell.digits is None:
                yield {**line, **_csv_value(measure.beside, cell.beside)}
    for guess, scores in table.guesses.items():
        for key, score in scores.items():
            at = {"table": spec.name, "row": guess, "column": dict(table.columns)[key], "column_key": key}
            yield {**at, **_csv_value(spec.of(key), score)}


def _csv_value(measure: Measure, mean: float | None) -> dict[str, Any]:
    return {"measure": " - ".join(filter(None, (measure.metric, measure.minus))), "unit": measure.unit, "mean": mean}
