"""A table as HTML: a fragment, and pages that need nothing but themselves (no script, no font, no address)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from zo_sweeps.tables.cells import Cell, CellState, Table
from zo_sweeps.tables.stats import CONFIDENCE, Difference, differences
from zo_sweeps.tables.text_cells import (
    SELECTED,
    Grid,
    Text,
    footnotes,
    heading,
    main_grid,
    notes,
    plain,
    selected_grid,
    signed,
)

STYLE = """\
body { font: 15px/1.45 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 92rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #ddd; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .4rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .7rem; text-align: right; vertical-align: top; border-bottom: 1px solid #e4e4e4; }
thead th { border-bottom: 2px solid #444; border-top: 2px solid #444; white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 2px solid #444; }
th:first-child, td:first-child { text-align: left; }
tbody th { font-weight: 500; min-width: 10rem; }
td span { display: block; color: #5a5a5a; font-size: .82em; white-space: nowrap; }
td b { font-weight: inherit; white-space: nowrap; }
td.empty { color: #767676; } td.bad { color: #a3341d; } td.clear { font-weight: 600; }
sup { color: #28527a; }
.notes { font-size: .86em; color: #444; padding-left: 1.1rem; } .notes.marked { list-style: none; padding: 0; }
p.notes { padding: 0; max-width: 60rem; }
pre { background: #f5f5f5; padding: .6rem .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
figure { margin: .8rem 0; } .figures { display: flex; flex-wrap: wrap; gap: 0 2rem; align-items: flex-start; }
.figures figure { max-width: 100%; flex: 0 1 auto; } figcaption { max-width: 34rem; }
 figure svg { max-width: 100%; height: auto; } figcaption { font-size: .86em; color: #444; }
details { margin: .6rem 0; } summary { cursor: pointer; }
@media print { body { margin: 0; max-width: none; } details { display: block; } }
"""
BAD = (CellState.DIVERGED, CellState.OUT_OF_MEMORY, CellState.FAILED)


def page(title: str, parts: Iterable[str]) -> str:
    """A whole document of `parts` (HTML)."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def to_html(table: Table) -> str:
    """The table with its notes and selected hyper-parameters, as a fragment. A cell's tooltip names its trials."""
    grid = main_grid(table)
    rows = []
    for (block, _), texts in zip(table.rows, grid.rows, strict=True):
        cells = [_cell(table.cells[block, key], text) for (key, _), text in zip(table.columns, texts[1:], strict=True)]
        rows.append(f'<tr><th scope="row">{_text(texts[0])}</th>{"".join(cells)}</tr>')
    parts = [_frame(grid.header, rows, heading(table))]
    marked = [f"<li><sup>{note.marks[0]}</sup> {escape(note.text)}</li>" for note in footnotes(table)]
    plain_notes = [f"<li>{escape(note)}</li>" for note in notes(table)]
    if marked:
        parts.append(f'<ul class="notes marked">{"".join(marked)}</ul>')
    if plain_notes:
        parts.append(f'<ul class="notes">{"".join(plain_notes)}</ul>')
    selected = selected_grid(table)
    if selected:
        parts.append(_simple(selected, SELECTED))
    return f'<section class="table">\n{chr(10).join(parts)}\n</section>'


def differences_html(table: Table) -> str:
    """The paired differences of the table's rows (row minus column) with their intervals; "" where nothing pairs."""
    found = differences(table)
    if not found:
        return ""
    labels, digits = dict(table.rows), table.spec.measure.digits
    by_pair = {(d.row, d.other): d for d in found}
    keys = [key for key, _ in table.rows if any(key in pair for pair in by_pair)]
    header = (Text("row − column"), *(Text(labels[key]) for key in keys[1:]))
    rows = []
    for i, row in enumerate(keys[:-1]):
        cells = []
        for other in keys[1:]:
            difference = by_pair.get((row, other))
            above = keys.index(other) > i
            cells.append(_difference(difference, digits) if difference else f"<td>{'–' if above else ''}</td>")
        rows.append(f'<tr><th scope="row">{escape(labels[row])}</th>{"".join(cells)}</tr>')
    unit = table.spec.measure.unit
    title = f"Paired differences of {table.spec.title} ({unit}), with {CONFIDENCE:.0%} confidence intervals"
    note = (
        "A pair is the two rows' selected runs with the same seed in the same column; n pairs. The interval is mean ± "
        "t·s/√n (Student's t, n − 1 degrees of freedom) over the pairs: it speaks for these columns, not for others, "
        "and takes the pairs of one column as independent. Bold where it excludes 0; none where there is one pair, "
        "or all are equal. Not corrected for the number of comparisons."
    )
    return f'<section class="differences">\n{_frame(header, rows, title)}\n<p class="notes">{note}</p>\n</section>'


def listing(header: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A plain table of texts and numbers."""
    lines = [f"<tr>{''.join(f'<td>{escape(plain(value))}</td>' for value in row)}</tr>" for row in rows]
    return _frame([Text(name) for name in header], lines, caption)


def pairs(values: Mapping[str, object]) -> str:
    """A two-column table without a head."""
    lines = (
        f'<tr><th scope="row">{escape(name)}</th><td style="text-align:left">{escape(plain(value))}</td></tr>'
        for name, value in values.items()
    )
    return f'<div class="wide"><table><tbody>{"".join(lines)}</tbody></table></div>'


def _frame(header: Sequence[Text], rows: Sequence[str], caption: str) -> str:
    head = "".join(f'<th scope="col">{_text(text)}</th>' for text in header)
    title = f"<h3>{escape(caption)}</h3>\n" if caption else ""  # a <caption> would wrap at the table's width
    body = "\n".join(rows)
    top = f"<thead><tr>{head}</tr></thead>"
    return f'{title}<div class="wide"><table>\n{top}\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _simple(grid: Grid, caption: str) -> str:
    lines = [
        f'<tr><th scope="row">{_text(row[0])}</th>{"".join(f"<td>{_text(text)}</td>" for text in row[1:])}</tr>'
        for row in grid.rows
    ]
    return _frame(grid.header, lines, caption)


def _cell(cell: Cell, text: Text) -> str:
    kind = "bad" if cell.state in BAD else "empty" if cell.mean is None else ""
    shown = f' class="{kind}"' if kind else ""
    if cell.trial_ids and cell.mean is not None:
        shown += f' title="{cell.n} {"run" if cell.n == 1 else "runs"}: {escape(" ".join(cell.trial_ids))}"'
    return f"<td{shown}><b>{_text(text)}</b>{''.join(f'<span>{escape(line)}</span>' for line in text.below)}</td>"


def _difference(difference: Difference, digits: int) -> str:
    lines = [f"n={difference.n}"]
    if difference.low is not None and difference.high is not None:
        lines.insert(0, f"[{signed(difference.low, digits)}, {signed(difference.high, digits)}]")
    shown = ' class="clear"' if difference.excludes_zero else ""
    below = "".join(f"<span>{line}</span>" for line in lines)
    return f"<td{shown}><b>{signed(difference.mean, digits)}</b>{below}</td>"


def _text(text: Text) -> str:
    return escape(text.text) + (f"<sup>{','.join(text.marks)}</sup>" if text.marks else "")
