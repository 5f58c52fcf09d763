"""`status --watch`: follows a sweep that runs in another process, to its end."""

from __future__ import annotations

import io
import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from zo_sweeps.cli.show.status import show_failures, show_progress, show_status
from zo_sweeps.plan.build import Plan
from zo_sweeps.results.facts.status import SweepStatus, status_facts
from zo_sweeps.schedule.ledger import driver_of

WATCH_SECONDS = 2.0


def watch(planned: Plan, console: Console, *, failed: bool, trials: bool) -> None:
    """Show the progress of a sweep on a page of its own until the sweep or Ctrl-C ends it; then print the status.

    The terminal is as before afterwards. Without one, the status is printed at the beginning and at the end.

    Args:
        failed, trials: as for `show_status`, at the end.
    """
    folder = planned.config.folder
    if not console.is_terminal and driver_of(folder):
        show_progress(status_facts(planned), console)
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while driver_of(folder):
            if console.is_terminal:
                live.update(_page(status_facts(planned), console), refresh=True)
            time.sleep(WATCH_SECONDS)
    show_status(status_facts(planned), console, failed=failed, trials=trials)


def _page(sweep: SweepStatus, console: Console) -> Text:
    """Return the page: at most as high as the terminal."""
    page = io.StringIO()
    shown = Console(file=page, width=console.width, force_terminal=True, color_system="standard", highlight=False)
    show_progress(sweep, shown)
    show_failures(sweep, shown)
    lines = [*page.getvalue().splitlines()[: console.height - 1], "Ctrl-C leaves this page; the sweep goes on"]
    return Text.from_ansi("\n".join(lines))
