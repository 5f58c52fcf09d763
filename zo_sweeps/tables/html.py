"""A table as HTML: a fragment, and self-contained pages that name no address.

The templates are the *.html.j2 files of this folder; they escape everything except other templates' output, and show
hidden characters. A page's Content-Security-Policy loads nothing, and runs only what is written into it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.units import visible
from zo_sweeps.tables.cells import CellState, Table
from zo_sweeps.tables.page import readable
from zo_sweeps.tables.text_cells import SELECTED, footnotes, heading, main_grid, selected_grid
from zo_sweeps.tables.text_cells import notes as notes_of

if TYPE_CHECKING:
    from jinja2 import Environment

BAD = (CellState.DIVERGED, CellState.OUT_OF_MEMORY, CellState.FAILED)
STYLE = Path(__file__).parent / "style.css"
_POLICY = "zo-sweeps-policy"  # in a page, until its parts are known
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def render(template: str, folder: Path | None = None, **values: Any) -> str:
    """Return a template of this folder, or of `folder`, with its values filled in: escaped, unless marked `safe`."""
    return _environment(folder).get_template(template).render(values).strip() + "\n"


def document(template: str, folder: Path | None = None, *, files: bool = False, **values: Any) -> str:
    """Return a whole page from a template that extends page.html.j2, with the policy that allows just its own parts.

    With `files`, it may also load scripts and styles from files beside it.
    """
    style = STYLE.read_text(encoding="utf-8").strip()
    text = render(template, folder, POLICY=_POLICY, style=style, **values)
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        allowed[kind].append(f"'sha256-{digest}'")
    sources = {kind: " ".join([*(["'self'"] if files else []), *found]) or "'none'" for kind, found in allowed.items()}
    policy = f"default-src 'none'; script-src {sources['script']}; style-src {sources['style']}; img-src data:"
    return text.replace(_POLICY, f"{policy}; base-uri 'none'; form-action 'none'", 1)


def page(title: str, parts: Iterable[str]) -> str:
    """Return a complete document of `parts` (HTML)."""
    return document("page.html.j2", title=title, parts=list(parts))


def to_html(table: Table) -> str:
    """Return the table with its notes and selected hyper-parameters. A cell's tooltip names its trials."""
    table = readable(table)
    return section(
        table, 2, heading(table), footnotes=footnotes(table), notes=notes_of(table), selected=selected_grid(table)
    )


def section(
    table: Table,
    level: int,
    title: str,
    ways: Sequence[str] = (),
    linked: Mapping[str, str] = MappingProxyType({}),
    **parts: Any,
) -> str:
    grid = main_grid(table)
    header = list(grid.header)
    if ways:
        header[1:] = (replace(it, text=f"{it.text} {way}") for it, way in zip(header[1:], ways, strict=True))
    cells = [[table.cells[block, key] for key, _ in table.columns] for block, _ in table.rows]
    values = {"footnotes": [], "notes": [], "selected": None, **parts}
    return render(
        "table.html.j2",
        header=header,
        linked=linked,
        heading=title,
        level=level,
        rows=[(texts[0], list(zip(row, texts[1:], strict=True))) for row, texts in zip(cells, grid.rows, strict=True)],
        bad=BAD,
        best=_best(table),
        selected_title=SELECTED,
        **values,
    )


def _best(table: Table) -> set[tuple[int, int]]:
    """Return the places (row, column) of the best printed values, of columns with several finished rows."""
    best = set()
    for j, (key, _) in enumerate(table.columns):
        measure = table.spec.of(key)
        cells = [table.cells[block, key] for block, _ in table.rows]
        means = {
            i: round(cell.mean, measure.digits if cell.digits is None else cell.digits)
            for i, cell in enumerate(cells)
            if cell.mean is not None and cell.state is CellState.DONE
        }
        is_rank = any(cell.digits is not None for cell in cells)
        if len(means) > 1 and len({*means.values()}) > 1:
            top = max(means.values()) if measure.better == "higher" and not is_rank else min(means.values())
            best |= {(i, j) for i, mean in means.items() if mean == top}
    return best


@cache
def _environment(folder: Path | None) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader([*([folder] if folder else []), Path(__file__).parent]),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
