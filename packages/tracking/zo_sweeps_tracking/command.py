"""The commands of the package: `ui` and `sync`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from zo_sweeps.cli.parser import grid_parser, parse
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import nothing_run
from zo_sweeps.record.sweep_book import books
from zo_sweeps_tracking import rows, server, store, trackers
from zo_sweeps_tracking.runs import pages


def ui(given: Sequence[str]) -> int:
    """Serve the MLflow page of a state folder on loopback until Ctrl-C."""
    parser = grid_parser("ui", ui.__doc__)
    parser.add_argument("--port", type=int, default=None, help="default: a free port")
    options = parse(parser, given)
    folder = Composer(options.overrides, options.config_dir).run.folder
    if not any(books(folder)) and not (folder / "mlflow").is_dir():
        raise nothing_run(folder)
    with contextlib.closing(server.start(folder, options.port)) as serving:
        print(f"waiting for the MLflow server of {folder}, which takes up to half a minute to start", flush=True)
        serving.wait()
        here = pages(serving.uri, folder)
        for title, page in here.items():
            print(f"{title}: {page}")
        if lacking := sum(book.sweep.title not in here for book in books(folder)):
            print(f"{lacking} sweep{'s are' if lacking > 1 else ' is'} not in this mirror: zo-sweeps sync sends them")
        print(f"MLflow: {serving.uri}/#/experiments?{rows.TRAINING}   (Ctrl-C to stop)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)
    return 0


def sync(given: Sequence[str]) -> int:
    """Send the results of a state folder that a tracking server lacks; tracking.uri=URI names another server.

    With tracking.also=[wandb], that tracker too.
    """
    options = parse(grid_parser("sync", sync.__doc__), given)
    config = Composer(options.overrides, options.config_dir).run
    trackers.check(config.tracking.also)
    try:
        store.sync(config.folder, config.tracking.uri)
    finally:  # a server that does not answer holds up no other tracker
        trackers.sync(config.folder, config.tracking.also)
    return 0
