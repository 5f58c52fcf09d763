"""`sync`: bring an MLflow store up to date with a state folder, after it was unreachable or for another server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from zo_sweeps.core.errors import UserError, nothing_run
from zo_sweeps.record.mlflow_client import SweepRuns, is_temporary, reason, silence
from zo_sweeps.record.mlflow_store import lock_mirror
from zo_sweeps.record.sweep_book import Contents, books


def sync(state_dir: str | os.PathLike[str], uri: str | None = None, say: Callable[[str], None] = print) -> int:
    """Send everything in a state folder's journals that a store lacks; return the number of trials sent.

    Idempotent: acknowledged journals are not resent, and a row that is sent twice is stored once.

    Args:
        state_dir: the state folder; all sweeps that were run there are sent.
        uri: the tracking server; None for the state folder's own store.
        say: prints a line for the user, one per sweep.

    Raises UserError if there is nothing to send, a sweep is sending from the folder, the store does not answer, or it
    refuses some of the rows; the rows that it accepted stay.
    """
    folder = Path(state_dir).resolve()
    sweeps = list(books(folder))
    if not sweeps:
        raise nothing_run(folder)
    lock = lock_mirror(folder)
    if lock is None:
        raise UserError("a sweep is running here and sends its own results", where=str(folder), fix="wait for its end")
    try:
        return sum(_send(book, folder, uri, say) for book in sweeps)
    finally:
        os.close(lock)


def _send(book: Contents, folder: Path, uri: str | None, say: Callable[[str], None]) -> int:
    """Send one sweep. A trial that the store refuses, or whose journal is damaged, does not block the others."""
    runs = SweepRuns(uri, book.experiment, book.sweep, book.began, folder)
    sent, problems = 0, []
    try:
        runs.open()
        for trial in book.trials:
            try:
                sent += runs.send(trial)
            except Exception as error:  # MLflow, SQLAlchemy and the network each raise their own
                if is_temporary(error):
                    raise
                problems.append(f"trial {trial.trial_id}: {reason(error)}")
        if book.final:
            runs.finish(book.final)
        runs.abandon(parent_too=book.final is None)
    except Exception as error:  # as above; also of opening and finishing the sweep's run
        what = silence(error) if is_temporary(error) else "refuses the sweep"
        fix = "check tracking.uri; the same command goes on where this one stopped"
        raise UserError(f"MLflow at {runs.store} {what} ({reason(error)})", fix=fix) from None
    if problems:
        raise UserError(f"{len(problems)} of {len(book.trials)} trials were not sent; {problems[0]}", where=str(folder))
    say(f"{book.sweep.title}: {sent} trials sent to {runs.store}")
    return sent
