"""Two files of the benchmark, row by row."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from zo_sweeps.bench.measure import Row
from zo_sweeps.core.errors import UserError


@dataclass(frozen=True)
class Measured:
    """What one file holds: its host, and its rows by name."""

    host: Mapping[str, Any]
    rows: Mapping[str, Row]


@dataclass(frozen=True)
class Pair:
    """The rows of one name; None in the file without it."""

    name: str
    a: Row | None
    b: Row | None

    @property
    def percent(self) -> float | None:
        """The change from A to B in percent of A; None without two numbers in one unit."""
        if self.a is None or self.b is None or self.a.unit != self.b.unit or not self.a.ratio:
            return None
        change = 100 * (self.b.ratio / self.a.ratio - 1)
        return change if math.isfinite(change) else None

    @property
    def better(self) -> bool:
        """Whether B is better than A, where the change is a number."""
        return self.a is not None and ((self.percent or 0) > 0) == self.a.more_is_better

    @property
    def lost(self) -> bool:
        """Whether A reached the row's goal and B does not."""
        return self.a is not None and self.b is not None and self.a.reached and not self.b.reached


def read(path: Path) -> Measured:
    """Read a file that `bench --json` wrote. Raises UserError if it cannot be read, or is not such a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _other(path) from None
    try:
        rows = [Row(**{one.name: row[one.name] for one in fields(Row)}) for row in content["rows"]]
        host = dict(content["host"])
    except (TypeError, KeyError, ValueError):
        raise _other(path) from None
    numbers = [value for row in rows for value in (row.ratio, row.must)]
    texts = [text for row in rows for text in (row.name, row.unit)]
    if not all(isinstance(value, (int, float)) for value in numbers) or not all(isinstance(t, str) for t in texts):
        raise _other(path)
    return Measured(host, {row.name: row for row in rows})


def pairs(a: Measured, b: Measured) -> list[Pair]:
    """Return the rows of both files by name, in the order of A, then those that only B has."""
    return [Pair(name, a.rows.get(name), b.rows.get(name)) for name in dict.fromkeys((*a.rows, *b.rows))]


def host_differences(a: Measured, b: Measured) -> list[tuple[str, Any, Any]]:
    """Return (what, A's, B's) for everything in which the hosts differ; None where a file does not say."""
    both = [(name, a.host.get(name), b.host.get(name)) for name in dict.fromkeys((*a.host, *b.host))]
    return [(name, one, other) for name, one, other in both if one != other]


def _other(path: Path) -> UserError:
    return UserError(f"{path} is no file of the benchmark", fix="write one with: bench PART --json FILE")
