"""The output of `bench compare`."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from zo_sweeps.bench.measure import Measured, Pair, Row, host_differences, pairs, unit_text
from zo_sweeps.cli.show.text import counted, listing, say


def compare(a: Measured, b: Measured, to: Console) -> int:
    """Print the rows of two files side by side and how their hosts differ; return 1 if B lost a goal that A reached."""
    both = pairs(a, b)
    rows = [(one.name, _value(one.a), _value(one.b), _change(one), _goal(one)) for one in both]
    listing(to, ("benchmark", "A", "B", "change", "goal"), rows)
    differs = [
        f"{name.replace('_', ' ')} {_plain(one)} → {_plain(other)}" for name, one, other in host_differences(a, b)
    ]
    say(to, f"hosts, A → B: {'; '.join(differs) or 'no difference'}")
    lost = sum(one.lost for one in both)
    if lost:
        say(to, f"{counted(lost, 'goal')} reached in A and not in B")
    return int(lost > 0)


def _value(row: Row | None) -> str:
    return "–" if row is None else f"{row.ratio:.4g}{unit_text(row.unit)}"


def _change(pair: Pair) -> str:
    if pair.percent is None:
        return "–"
    return f"{pair.percent:+.1f} %" + (f", {'better' if pair.better else 'worse'}" if pair.percent else "")


def _goal(pair: Pair) -> str:
    said = [_reached(row) for row in (pair.a, pair.b) if row is not None]
    if pair.a is None or pair.b is None:
        return f"{said[0]}, only in {'B' if pair.a is None else 'A'}"
    return said[0] if said[0] == said[1] else f"{said[0]} → {said[1]}"


def _reached(row: Row) -> str:
    return "ok" if row.reached else "NO"


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "–" if value is None else str(value)
