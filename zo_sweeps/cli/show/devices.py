"""The output of `devices`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from zo_sweeps.cli.show.text import listing
from zo_sweeps.fleet.inventory import HEADERS, Device, row_of


def show_devices(devices: Sequence[Device], to: Console, now: float) -> None:
    """Print a row per machine; on a narrow terminal a block of lines, without what is unknown.

    Args:
        now: Unix seconds.
    """
    listing(to, HEADERS, [row_of(one, now) for one in devices])
