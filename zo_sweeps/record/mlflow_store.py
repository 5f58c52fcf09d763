"""The MLflow mirror: what people browse. Fed from the journals in the background; it never holds up the sweep.

The journals are the truth. What the server misses while it is away is sent when it is back, or later by `sync`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Trial
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.mlflow_sender import Sender
from zo_sweeps.record.sweep_book import SweepBook, SweepInfo, books

__all__ = ["MlflowMirror", "SweepInfo", "sync"]


class MlflowMirror:
    """Sends the journals of a sweep to an MLflow server.

    Args:
        uri: tracking server; None sends nothing and only keeps what a later `sync` needs.
        experiment: name of the MLflow experiment; made if it is missing.
        sweep: the parent run.
        state_dir: where the journals are (see JournalStore).
        say: prints a line for people. That the server is away is said once.
        patience: seconds that a server may take to answer first, before it is said (one that has just been started).

    No method raises because of the server; a full disk raises UserError, as it does for the journals. `close` ends the
    threads; what was not sent stays for the next time.
    """

    def __init__(
        self,
        uri: str | None,
        experiment: str,
        sweep: SweepInfo,
        state_dir: str | os.PathLike[str],
        *,
        say: Callable[[str], None] = print,
        patience: float = 0.0,
    ) -> None:
        folder = Path(state_dir).resolve()
        self._book = SweepBook(folder, experiment, sweep)
        self._journals = JournalStore(folder)
        self._trials: dict[str, Trial] = {}
        self._sender = Sender(uri, experiment, sweep, self._book.began, folder, say, patience) if uri else None

    @property
    def problems(self) -> Mapping[str, str]:
        """Why a trial cannot be sent at all, by trial_id."""
        return self._sender.problems if self._sender else {}

    @property
    def page(self) -> str:
        """Address of the sweep's page in MLflow, for a browser; "" as long as the server has not answered."""
        return self._sender.page if self._sender else ""

    def register(self, trial: Trial) -> None:
        """Make a trial known. What its journal already holds is sent if the server has not got it."""
        self._book.add(trial)
        self._trials[trial.trial_id] = trial
        if self._journals.path(trial.trial_id).exists():
            self.notify(trial.trial_id)

    def notify(self, trial_id: str) -> None:
        """The journal of a registered trial has grown. Costs microseconds."""
        if self._sender:
            self._sender.notify(self._trials[trial_id])

    def finish(
        self,
        table_markdown: str,
        files: Mapping[str, str] | None = None,
        metrics: Mapping[str, float] | None = None,
        status: str = "FINISHED",
    ) -> None:
        """End the parent run, after all that waits: `table.md` and further files as artifacts, and its metrics.

        `status`: FINISHED, FAILED, or KILLED for a sweep that was interrupted.
        """
        final = self._book.finish({"table.md": table_markdown, **(files or {})}, metrics or {}, status)
        if self._sender:
            self._sender.finish(final)

    def drain(self, timeout: float) -> int:
        """Wait until everything is sent, at most `timeout` seconds. Returns how many trials still wait."""
        return self._sender.drain(timeout) if self._sender else 0

    def close(self, timeout: float = 5.0) -> None:
        """End the threads. Runs that are still shown as running are closed as killed, if the server answers."""
        if self._sender:
            self._sender.close(timeout)
        self._book.close()


def sync(
    state_dir: str | os.PathLike[str],
    uri: str,
    *,
    say: Callable[[str], None] = print,
    patience: float = 30.0,
    timeout: float = 600.0,
) -> int:
    """Send everything in a state directory to a server; returns the number of trials that have a journal.

    What the server has already is not sent again. Waits for a sweep that is running here. Raises UserError if there is
    nothing to send, if the server does not answer in `patience` seconds, or if it does not take everything in `timeout`
    seconds a sweep.
    """
    folder, journals = Path(state_dir).resolve(), JournalStore(state_dir)
    found = list(books(folder))
    if not found:
        raise UserError("no sweep was ever run here", where=str(folder), fix="name the folder of a sweep's state")
    count = 0
    for book in found:
        complaints: list[str] = []
        sender = Sender(uri, book.experiment, book.sweep, book.began, folder, complaints.append, patience)
        started = [trial for trial in book.trials if journals.path(trial.trial_id).exists()]
        try:
            for trial in started:
                sender.notify(trial)
            if book.final:
                sender.finish(book.final)
            while not sender.page and not complaints:
                sender.drain(0.2)
            left = sender.drain(timeout if sender.page else 0)
        finally:
            sender.close()
        if left or sender.problems or not sender.page:
            why = complaints[0].partition(";")[0] if complaints else f"{left} trials were not taken in {timeout:g} s"
            raise UserError(f"not everything was sent: {why}", where=str(folder), fix="run the same command again")
        say(f"{book.sweep.title}: {len(started)} trials are at {uri}")
        count += len(started)
    return count
