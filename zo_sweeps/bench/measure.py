"""What `bench` measures: its rows, and what it prints, writes and compares of them. Functions run interleaved."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods import registry

ENGINE = ("noise", "step", "memory", "replay")
PARTS = {name: f"zo_sweeps.bench.engine_parts:{name}_rows" for name in ENGINE}  # benchmarks/__main__.py adds CHECKOUT
CHECKOUT = ("precision", "codes", "sparse", "gpu", "cluster", "shares", "population")


@dataclass(frozen=True)
class RatioRow:
    """One row of the table: a ratio with its required value, its target and its limit.

    Args:
        ratio: the measured value.
        unit: "x" for a speed-up (more is better), "of" for a relative cost (less is better); absolute values: "MiB",
            "s", "ms" (less is better), "/s" for a rate (more is better).
        must: the required value.
        aim: the target.
        limit: the bound on the value, or its cause.
        detail: the measurements behind the ratio.
    """

    name: str
    ratio: float
    unit: str
    must: float
    aim: float
    limit: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def more_is_better(self) -> bool:
        """Whether the ratio is a speed-up or a rate, not a cost."""
        return self.unit in ("x", "/s")

    @property
    def reached(self) -> bool:
        """Whether the ratio meets `must`."""
        return self.ratio >= self.must if self.more_is_better else self.ratio <= self.must


def host() -> dict[str, Any]:
    """Describe the host of the measurements."""
    import torch

    from zo_sweeps.core.host import processor
    from zo_sweeps.engine import noise

    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "compiled_noise": noise.is_compiled(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        **_gpu(),
    }


def _gpu() -> dict[str, str]:
    """Return the name of the first GPU that torch sees, and its driver's version; {} without a GPU."""
    import torch

    from zo_sweeps.devices.kernels import DRIVER

    if not torch.cuda.is_available():
        return {}
    version = re.search(r"\d+(\.\d+)+", DRIVER.read_text(errors="replace") if DRIVER.is_file() else "")
    return {"gpu": torch.cuda.get_device_name(), "driver": version.group() if version else ""}


def run(part: str, rounds: int) -> list[RatioRow]:
    """Measure one part, or all parts of the engine; return the rows.

    Raises UserError for an unknown part, and for fewer than one round.
    """
    offered = registry.offered("benchmark")
    if part in CHECKOUT and part not in PARTS:
        raise UserError(f"bench {part} is not installed", fix=f"in a checkout: python -m benchmarks {part}")
    if part not in ("all", *PARTS, *offered):
        raise registry.absent("benchmark", part) or unknown("benchmark", part, ["all", *PARTS, *CHECKOUT, *offered])
    if rounds < 1:
        raise UserError(f"--rounds must be at least 1, not {rounds}")
    chosen = ENGINE if part == "all" else (part,)
    if part in offered:
        return [*registry.load(offered[part])(rounds)]
    return [row for name in chosen for row in resolve_name(PARTS[name])(rounds)]


def text(rows: Sequence[RatioRow]) -> str:
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


def write(rows: Sequence[RatioRow], path: Path) -> None:
    """Write the rows and their host as JSON. Raises UserError if the file cannot be written."""
    content = {"host": host(), "rows": [{**asdict(row), "reached": row.reached} for row in rows]}
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", where="--json") from None


@dataclass(frozen=True)
class Measurements:
    """What one file holds: its host, and its rows by name."""

    host: Mapping[str, Any]
    rows: Mapping[str, RatioRow]


@dataclass(frozen=True)
class Pair:
    """The rows of one name; None in the file without it."""

    name: str
    a: RatioRow | None
    b: RatioRow | None

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


def read(path: Path) -> Measurements:
    """Read a file that `bench --json` wrote. Raises UserError if it cannot be read, or is not such a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _other(path) from None
    try:
        rows = [RatioRow(**{one.name: row[one.name] for one in fields(RatioRow)}) for row in content["rows"]]
        host = dict(content["host"])
    except (TypeError, KeyError, ValueError):
        raise _other(path) from None
    numbers = [value for row in rows for value in (row.ratio, row.must)]
    texts = [text for row in rows for text in (row.name, row.unit)]
    if not all(isinstance(value, (int, float)) for value in numbers) or not all(isinstance(t, str) for t in texts):
        raise _other(path)
    return Measurements(host, {row.name: row for row in rows})


def pairs(a: Measurements, b: Measurements) -> list[Pair]:
    """Return the rows of both files by name, in the order of A, then those that only B has."""
    return [Pair(name, a.rows.get(name), b.rows.get(name)) for name in dict.fromkeys((*a.rows, *b.rows))]


def host_differences(a: Measurements, b: Measurements) -> list[tuple[str, Any, Any]]:
    """Return (what, A's, B's) for everything in which the hosts differ; None where a file does not say."""
    both = [(name, a.host.get(name), b.host.get(name)) for name in dict.fromkeys((*a.host, *b.host))]
    return [(name, one, other) for name, one, other in both if one != other]


def _other(path: Path) -> UserError:
    return UserError(f"{path} is no file of the benchmark", fix="write one with: bench PART --json FILE")
