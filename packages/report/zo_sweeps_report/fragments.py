"""Fragments of the pages as HTML: a table as a report shows it, paired differences, data for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from zo_sweeps.core.units import visible
from zo_sweeps.tables.cells import Table
from zo_sweeps.tables.html import render, section
from zo_sweeps.tables.records import RANK
from zo_sweeps.tables.stats import CONFIDENCE, Examples
from zo_sweeps.tables.text_cells import signed
from zo_sweeps_report.paired import differences

WEB = Path(__file__).parent / "web"
ARROWS = {"higher": "↑", "lower": "↓"}


def cells_html(table: Table, title: str, linked: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the table under a title of its own, with the better direction, without notes and hyper-parameters.

    Args:
        linked: trial -> the address of its page: a cell links to that of its first.
    """
    ways = [ARROWS[table.spec.of(key).better] if key != RANK else ARROWS["lower"] for key, _ in table.columns]
    alike = len({*ways}) == 1
    return section(table, 3, f"{title} {ways[0]}" if alike else title, [] if alike else ways, linked)


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
        WEB,
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
