"""The measures in conf/table: accuracy, runtime, memory, …"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zo_sweeps.tables.paper_files import read
from zo_sweeps.tables.records import Measure


def load(name: str, folders: Sequence[Path] | None = None) -> Measure:
    """The measure of conf/table/<name>.yaml. Raises UserError, with the choices, when there is none."""
    return Measure.from_mapping(read("table", name, folders), f"conf/table/{name}.yaml")
