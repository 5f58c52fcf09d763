"""The output of `ui` and `doctor`."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from rich.console import Console

from zo_sweeps.cli.show.text import say
from zo_sweeps.core.errors import nothing_run


def ui(folder: Path, port: int | None) -> None:
    """Serve the MLflow page of `folder` until Ctrl-C."""
    if not folder.is_dir():
        raise nothing_run(folder)
    from zo_sweeps.record.mlflow_client import pages
    from zo_sweeps.record.mlflow_points import TRAINING
    from zo_sweeps.record.server import running
    from zo_sweeps.record.sweep_book import books

    with running(folder, port) as server:
        print(f"waiting for the MLflow server of {folder}, which takes up to half a minute to start", flush=True)
        server.wait()
        here = pages(server.uri, folder)
        for title, page in here.items():
            print(f"{title}: {page}")
        if lacking := sum(book.sweep.title not in here for book in books(folder)):
            print(f"{lacking} sweep{'s are' if lacking > 1 else ' is'} not in this mirror: zo-sweeps sync sends them")
        print(f"MLflow: {server.uri}/#/experiments?{TRAINING}   (Ctrl-C to stop)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


def doctor(folder: str, console: Console) -> int:
    """Print one line per check; return 1 if a check failed, otherwise 0."""
    from zo_sweeps.devices.doctor import checks

    results = checks(folder)
    for check in results:
        fix = f"; {check.fix}" if check.fix and check.status != "ok" else ""
        say(console, f"{check.status:4}  {check.name}: {check.detail}{fix}")
    return 1 if any(check.status == "fail" for check in results) else 0
