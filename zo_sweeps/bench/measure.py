"""How times are taken here: everything compared runs in one process, in turn, and the minimum of the rounds counts."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One line of the table: `ratio` beside what it must reach, what is aimed at, and what limits it.

    Args:
        unit: "x" for how many times faster than the other (more is better), "of" for how many times its cost (less is
            better); no ratios: "MiB", "s", "ms" (less is better), "/s" for a rate (more is better).
        detail: the numbers that the ratio is of.
    """

    name: str
    ratio: float
    unit: str
    must: float
    aim: float
    limit: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reached(self) -> bool:
        return self.ratio >= self.must if self.unit in ("x", "/s") else self.ratio <= self.must


def interleaved(functions: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds a call of each function: the minimum over `rounds` rounds, in each of which every function runs once.

    One round more, not counted, goes first. A load on the machine that comes and goes then meets all alike.
    """
    best = dict.fromkeys(functions, float("inf"))
    for number in range(rounds + 1):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            if number:
                best[name] = min(best[name], time.perf_counter() - began)
    return best


def host() -> dict[str, Any]:
    """What the numbers were measured on."""
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
    }
