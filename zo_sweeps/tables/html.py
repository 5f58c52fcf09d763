"""A table as HTML: a fragment, and self-contained pages that name no address.

The templates are the *.html.j2 files of this folder; they escape everything except other templates' output, and show
hidden characters. A page's Content-Security-Policy loads nothing, and runs only what is written into it.
"""

from __future__ import annotations

import base64
import hashlib
import json
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
from zo_sweeps.tables.records import RANK
from zo_sweeps.tables.stats import CONFIDENCE, Examples, differences
from zo_sweeps.tables.text_cells import SELECTED, footnotes, heading, main_grid, selected_grid, signed
from zo_sweeps.tables.text_cells import notes as notes_of

if TYPE_CHECKING:
    from jinja2 import Environment

BAD = (CellState.DIVERGED, CellState.OUT_OF_MEMORY, CellState.FAILED)
ARROWS = {"higher": "↑", "lower": "↓"}
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
    return _section(
        table, 2, heading(table), footnotes=footnotes(table), notes=notes_of(table), selected=selected_grid(table)
    )


def cells_html(table: Table, title: str, linked: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the table under a title of its own, with the better direction, without notes and hyper-parameters.

    Args:
        linked: trial -> the address of its page: a cell links to that of its first.
    """
    ways = [ARROWS[table.spec.of(key).better] if key != RANK else ARROWS["lower"] for key, _ in table.columns]
    alike = len({*ways}) == 1
    return _section(table, 3, f"{title} {ways[0]}" if alike else title, [] if alike else ways, linked)


def _section(
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


def differences_html(
    table: Table,
    examples: Mapping[tuple[str, str], Examples],
    title: str = "",
    reference: str = "",
    *,
    notes: bool = True,
) -> str:
    """Return the paired differences of the table's rows minus a reference row as a forest plot; "" without any pair.

    The pairs of all rows are there as JSON, from which the page's script draws another reference.

    Args:
        examples: (row, other row) -> their test examples, compared one by one.
        title: of the table; default: its own.
        reference: key of the row; default, and if it is in no pair: the first row.
        notes: whether to add what the numbers mean.
    """
    found, digits = differences(table), table.spec.measure.digits
    if not found:
        return ""
    keys = [key for key, _ in table.rows if any(key in (it.row, it.other) for it in found)]
    against = reference if reference in keys else keys[0]
    mine = [it if it.other == against else it.turned for it in found if against in (it.row, it.other)]
    ends = [0.0, *(end for it in mine for end in (it.low, it.mean, it.high) if end is not None)]
    low, width = min(ends), max(ends) - min(ends) or 1.0
    labels = dict(table.rows)
    both = {**examples, **{pair[::-1]: Examples(it.n, it.other, it.one) for pair, it in examples.items()}}
    words = {pair: f"{it.one} : {it.other} of {it.n}, p={it.p:.2g}" for pair, it in both.items()}
    pairs = []
    for it in found:
        numbers = [None if value is None else round(value, digits) for value in (it.mean, it.low, it.high)]
        said = [words.get(pair, "") for pair in ((it.row, it.other), (it.other, it.row))]
        pairs.append([keys.index(it.row), keys.index(it.other), it.n, *numbers, it.excludes_zero, *said])
    return render(
        "differences.html.j2",
        title=title or f"Paired differences of {table.spec.title} ({table.spec.measure.unit})",
        against=labels[against],
        rows=[(labels[it.row], it, words.get((it.row, against), "")) for it in mine],
        at=lambda value: f"{4 + 192 * (value - low) / width:.1f}",
        better=table.spec.measure.better,
        digits=digits,
        signed=signed,
        examples=bool(examples),
        confidence=f"{CONFIDENCE:.0%}",
        notes=notes,
        data=as_script(
            {"rows": [labels[key] for key in keys], "against": labels[against], "digits": digits, "pairs": pairs}
        ),
    )


def as_script(data: Any) -> str:
    """Return data as JSON that can stand in a <script>: no text in it ends the element, begins a comment or hides."""
    text = visible(json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


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
