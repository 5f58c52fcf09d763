"""The grids of the papers, composed and planned once for all tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from zo_sweeps.config.composer import Composer
from zo_sweeps.plan.build import Plan, build

_PARTS: dict[Any, Any] = {}  # what a composer remembers of the packaged files, which is the same for every grid


@cache
def composer(grid: str) -> Composer:
    made = Composer([f"+grid={grid}"])
    made._composed = _PARTS
    return made


@cache
def plan(grid: str) -> Plan:
    return build(composer(grid))
