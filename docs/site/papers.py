"""The page of the papers, from conf/paper."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from markdown import code, escape, table

from zo_sweeps.results.papers import Item, items
from zo_sweeps.tables.published import load, read

ROOT = Path(__file__).resolve().parents[2]


def page() -> str:
    """Return a section per paper: its tables and figures, their grids, and the numbers it printed."""
    return "\n\n".join(_paper(key, [*every]) for key, every in groupby(items(), lambda item: item.paper))


def _paper(key: str, every: list[Item]) -> str:
    about = read("paper", key)["paper"]
    kind, _, number = about["id"].partition(":")
    source = f"[{about['id']}](https://arxiv.org/abs/{number})" if kind == "arXiv" else escape(about["id"])
    parts = [
        f"## {about['name']}",
        f"*{escape(about['title'])}*, {escape(about['authors'])}, {about['year']}. {source}",
        table(("", "what it is", "grid"), [(code(i.reference), escape(i.caption), _grids(i)) for i in every]),
        *_differences(every),
        *(_numbers(item) for item in every if item.has_numbers),
    ]
    return "\n\n".join(parts)


def _differences(every: list[Item]) -> list[str]:
    """Return a list of what the grids do otherwise than the paper; items with the same lines share them."""
    of: dict[tuple[str, ...], list[str]] = {}
    for item in every:
        of.setdefault(tuple(item.differs), []).append(code(item.reference))
    lines = [f"- {', '.join(names)}: {line}" for found, names in of.items() for line in map(escape, found)]
    return ["What these grids do otherwise, or where the paper says nothing:", "\n".join(lines)] if lines else []


def _grids(item: Item) -> str:
    """Return links to an item's grids, or why it has none."""
    return ", ".join(f"[{name}](../conf/grid/{name}.yaml)" for name in item.grids) or f"none: {escape(item.why)}"


def _numbers(item: Item) -> str:
    published = load(item.reference)
    rows = [
        [escape(name), *(_cell(values[c], published.std.get(name, {}).get(c)) for c in published.columns)]
        for name, values in published.rows.items()
    ]
    unit = f" ({published.unit})" if published.unit else ""
    flags = [f"{', '.join((*flag.rows, *flag.columns))}: {flag.note}" for flag in published.flags]
    notes = "\n".join(f"- {escape(note)}" for note in (*published.footnotes, *flags))
    head = f"### {item.reference}\n\n{escape(published.caption)}: {escape(published.metric + unit)}"
    return "\n\n".join(part for part in (head, table(["", *map(escape, published.columns)], rows), notes) if part)


def _cell(value: Any, std: float | None) -> str:
    if value is None:
        return "–"
    return escape(str(value)) + (f" ± {std}" if std is not None else "")
