"""What `bench` measures: its rows, and what it prints, writes and compares of them."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods import registry

ENGINE = ("noise", "step", "memory", "replay")  # those of `bench all`


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
    from zo_sweeps.devices.kernels import DRIVER
    from zo_sweeps.engine import noise

    gpu = {}
    if torch.cuda.is_available():
        version = re.search(r"\d+(\.\d+)+", DRIVER.read_text(errors="replace") if DRIVER.is_file() else "")
        gpu = {"gpu": torch.cuda.get_device_name(), "driver": version.group() if version else ""}
    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "compiled_noise": noise.is_compiled(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        **gpu,
    }


def run(part: str, rounds: int) -> Iterator[RatioRow]:
    """Measure one part, or all parts of the engine; yield each row when it is measured.

    Raises UserError for an unknown part, and for fewer than one round.
    """
    offered = registry.offered("benchmark")
    if part not in ("all", *offered):
        raise registry.absent("benchmark", part) or unknown("benchmark", part, ["all", *offered])
    if rounds < 1:
        raise UserError(f"--rounds must be at least 1, not {rounds}")
    for name in ENGINE if part == "all" else (part,):
        yield from registry.load(offered[name])(rounds)


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
    with _writing(path):
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def check(path: Path) -> None:
    """Raise UserError if a file cannot be written; one that is there keeps its content."""
    with _writing(path):
        path.open("a").close()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", where="--json") from None


def read(path: Path) -> tuple[dict[str, Any], dict[str, RatioRow]]:
    """Read a file that `bench --json` wrote; return its host, and its rows by name.

    Raises UserError if it cannot be read, or is not such a file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = [RatioRow(**{one.name: row[one.name] for one in fields(RatioRow)}) for row in content["rows"]]
        for row in rows:
            if not all(isinstance(number, (int, float)) for number in (row.ratio, row.must)):
                raise TypeError
            if not all(isinstance(text, str) for text in (row.name, row.unit)):
                raise TypeError
        return dict(content["host"]), {row.name: row for row in rows}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (KeyError, RecursionError, TypeError, ValueError):
        fix = "write one with: bench PART --json FILE"
        raise UserError(f"{path} is no file of the benchmark", fix=fix) from None


def compared(name: str, a: RatioRow | None, b: RatioRow | None) -> tuple[str, ...]:
    """Return the cells of a benchmark in two files: its name, A's and B's value, the change and the goal.

    Args:
        a, b: its rows; None in the file without it.
    """
    values = ["–" if row is None else f"{row.ratio:.4g}{unit_text(row.unit)}" for row in (a, b)]
    goals = ["ok" if row.reached else "NO" for row in (a, b) if row is not None]
    if a is None or b is None:
        return name, *values, "–", f"{goals[0]}, only in {'B' if a is None else 'A'}"
    change, percent = "–", 100 * (b.ratio / a.ratio - 1) if a.unit == b.unit and a.ratio else math.nan
    if math.isfinite(percent):
        better = "better" if (percent > 0) == a.more_is_better else "worse"
        change = f"{percent:+.1f} %" + (f", {better}" if percent else "")
    return name, *values, change, " → ".join(dict.fromkeys(goals))


def lost(a: RatioRow | None, b: RatioRow | None) -> bool:
    """Return whether A reached a benchmark's goal and B does not, or lacks it: its run may have ended before."""
    return a is not None and a.reached and not (b is not None and b.reached)
