"""The benchmark's table and its JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from zo_sweeps.bench.measure import Row, host
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods import registry

ENGINE = ("noise", "step", "memory", "replay")
PARTS = (*ENGINE, "precision", "codes", "sparse", "together", "gpu", "cluster", "shares", "agents")


def run(part: str, rounds: int) -> list[Row]:
    """Measure one part, or all parts of the engine; return the rows.

    Raises UserError for an unknown part, and for fewer than one round.
    """
    offered = registry.offered("benchmark")
    if part not in ("all", *PARTS, *offered):
        raise registry.absent("benchmark", part) or unknown("benchmark", part, ["all", *PARTS, *offered])
    if rounds < 1:
        raise UserError(f"--rounds must be at least 1, not {rounds}")
    chosen = ENGINE if part == "all" else (part,)
    if part in offered:
        return [*registry.load(offered[part])(rounds)]
    return [row for name in chosen for row in import_module(f"zo_sweeps.bench.{name}").rows(rounds)]


def text(rows: Sequence[Row]) -> str:
    """Format one line per row: the ratio, its required value, the target, and the limit."""
    lines = []
    for row in rows:
        unit = unit_text(row.unit)
        goals = f"must {row.must:.4g}{unit}, aim {row.aim:.4g}{unit}, limit {row.limit}"
        lines.append(f"{row.ratio:8.2f}{unit:5} {'ok ' if row.reached else 'NO '} {row.name} ({goals})")
    return "\n".join(lines)


def unit_text(unit: str) -> str:
    """Return a row's unit as it follows its number: "x" for both kinds of ratio, " MiB"."""
    return {"x": "x", "of": "x"}.get(unit, f" {unit}")


def write(rows: Sequence[Row], path: Path) -> None:
    """Write the rows and their host as JSON. Raises UserError if the file cannot be written."""
    content = {"host": host(), "rows": [{**asdict(row), "reached": row.reached} for row in rows]}
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", where="--json") from None
