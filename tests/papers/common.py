"""The grids of the papers, composed and planned once for all tests."""

from __future__ import annotations

from functools import cache

from tests.plan.common import PLACES
from zo_sweeps.config.composer import Composer
from zo_sweeps.plan.build import Plan, build


@cache
def composer(grid: str) -> Composer:
    return Composer([f"+grid={grid}"])


@cache
def plan(grid: str) -> Plan:
    return build(composer(grid), PLACES)
