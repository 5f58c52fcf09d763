"""A table as HTML: a fragment, and self-contained pages (no script, no font, no address).

The templates are the *.html.j2 files of this folder; they escape everything except other templates' output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zo_sweeps.tables.cells import CellState, Table
from zo_sweeps.tables.readable import readable
from zo_sweeps.tables.stats import CONFIDENCE, Examples, differences
from zo_sweeps.tables.text_cells import (
    SELECTED,
    footnotes,
    heading,
    main_grid,
    notes,
    selected_grid,
    signed,
)

if TYPE_CHECKING:
    from jinja2 import Environment

BAD = (CellState.DIVERGED, CellState.OUT_OF_MEMORY, CellState.FAILED)


def render(template: str, folder: Path | None = None, **values: Any) -> str:
    """Return a template with its values filled in.

    Args:
        template: name of a file in this folder, or in `folder`, whose templates may include this folder's.
        values: by the names that the template uses. Texts are escaped, unless the template marks them `safe`.
    """
    return _environment(folder).get_template(template).render(values).strip() + "\n"


def page(title: str, parts: Iterable[str]) -> str:
    """Return a complete document of `parts` (HTML)."""
    return render("page.html.j2", title=title, parts=list(parts))


def to_html(table: Table) -> str:
    """Return the table with its notes and selected hyper-parameters. A cell's tooltip names its trials."""
    table = readable(table)
    grid = main_grid(table)
    cells = [[table.cells[block, key] for key, _ in table.columns] for block, _ in table.rows]
    return render(
        "table.html.j2",
        header=grid.header,
        heading=heading(table),
        rows=[(texts[0], list(zip(row, texts[1:], strict=True))) for row, texts in zip(cells, grid.rows, strict=True)],
        bad=BAD,
        footnotes=footnotes(table),
        notes=notes(table),
        selected=selected_grid(table),
        selected_title=SELECTED,
    )


def differences_html(table: Table, examples: Mapping[tuple[str, str], Examples]) -> str:
    """Return the paired differences of the table's rows (row minus column) with intervals; "" without any pair.

    Args:
        examples: (row, other row) -> their test examples, compared one by one.
    """
    by_pair = {(each.row, each.other): each for each in differences(table)}
    if not by_pair:
        return ""
    labels = dict(table.rows)
    keys = [key for key, _ in table.rows if any(key in pair for pair in by_pair)]
    rows = []
    for i, row in enumerate(keys[:-1]):  # above the diagonal, a dash for rows without a pair; below it, nothing
        cells = [by_pair.get((row, other), "–" if j > i else "") for j, other in enumerate(keys[1:], 1)]
        rows.append((labels[row], cells))
    return render(
        "differences.html.j2",
        header=["row − column", *(labels[key] for key in keys[1:])],
        title=f"Paired differences of {table.spec.title} ({table.spec.measure.unit}), "
        f"with {CONFIDENCE:.0%} confidence intervals",
        rows=rows,
        digits=table.spec.measure.digits,
        signed=signed,
        examples=examples,
    )


@cache
def _environment(folder: Path | None) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader([*([folder] if folder else []), Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
