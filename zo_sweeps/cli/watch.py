"""`status --watch`: follows a sweep that runs in another process, to its end."""

from __future__ import annotations

import io
import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from zo_sweeps.cli.show import status
from zo_sweeps.plan.build import Plan
from zo_sweeps.schedule.ledger import driver_of
from zo_sweeps.schedule.progress import STATUS_SECONDS

WATCH_SECONDS = 2.0


def watch(planned: Plan, console: Console, *, failed: bool) -> None:
    """Print `status` repeatedly while the sweep runs, in place on a terminal; once more after its end."""
    folder = planned.config.folder
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while driver_of(folder):
            page = io.StringIO()
            shown = Console(file=page, width=console.width, force_terminal=console.is_terminal, highlight=False)
            status(planned, shown, failed=failed)
            text = page.getvalue()
            if console.is_terminal:
                live.update(Text.from_ansi(text), refresh=True)
            else:
                console.print(Text(text), soft_wrap=True)
            time.sleep(WATCH_SECONDS if console.is_terminal else STATUS_SECONDS)
    status(planned, console, failed=failed)
