"""Boards that run the light client: the head's side of their trials, without Ray in it.

The bundle of a trial is made on the head, where the gateway serves its files. Each run of the client is a lease: its
events are the lines of the client's log, from which a `TrialActor` on the head makes the trial's events, as it does of
a phone's log. The trial's journal is the only state: a lease carries what of it decides how the client goes on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ClientLine, End, Event, read_event
from zo_sweeps.core.light_client import Away, Bundle, Line, scoring
from zo_sweeps.core.trial import Outcome, Sharing, Trial, TrialState
from zo_sweeps.schedule.backend import run_guarded
from zo_sweeps_agent.agents import LOOK_SECONDS, STAMP_SECONDS, Drained
from zo_sweeps_agent.lease_contents import StoredFile
from zo_sweeps_agent.leases import OPEN, OVER, Lease, RefusedError, Store
from zo_sweeps_ray.actor import TrialActor
from zo_sweeps_ray.choice import LeaseLostError

BUNDLE = "bundle"  # `of` the files of a lease
BUSY_SECONDS = 3600.0  # to wait for another process's transaction: nothing else is left to do
PATIENCE = 60.0  # seconds that a board may be away, or busy, before its trial is handed back


class Board(Away):
    """The light client on one agent, for one attempt at a trial.

    Args:
        store: of the gateway, on this machine.
        driver: a name of this process's own; its leases end a while after it.
        agent, profile: the board and its device profile.
        attempt: of the trial.
        should_stop: called while waiting.

    Attributes:
        lost: why the board no longer runs the trial; "" while it does.
        blameless: whether that counts towards no bound on losses.
    """

    def __init__(
        self, store: Store, driver: str, agent: str, profile: str, attempt: int, should_stop: Callable[[], bool]
    ) -> None:
        self._store, self._driver, self._agent, self.profile = store, driver, agent, profile
        self._attempt, self._should_stop = attempt, should_stop
        self._stamped = 0.0
        self.measured: Mapping[str, float] = {"agent_bytes_down": 0.0, "agent_bytes_up": 0.0}
        self.lost, self.blameless = "", False

    def steps(self, bundle: Bundle, known: Sequence[Line]) -> Iterator[Line]:
        return self._run(bundle, known, [])

    def test(self, bundle: Bundle, known: Sequence[Line], step: int) -> Line | None:
        lines = [line for line in self._run(bundle, known, scoring("test", step)) if line["type"] != "start"]
        return next((line for line in lines if (line.get("split"), line["step"]) == ("test", step)), None)

    def _run(self, bundle: Bundle, known: Sequence[Line], arguments: Sequence[str]) -> Iterator[Line]:
        """Yield the lines of one run of the client. Raises StoppedError, also where the board is lost, and UserError.

        Args:
            arguments: of the client, after the bundle.
        """
        lease, number = self._lease(bundle, known, arguments), 0
        try:
            while True:
                self._wait_or_stop()
                standing = self._store.standing([lease])[lease]  # before the events: none follows its end
                events = self._store.events(lease, number)
                for event in map(read_event, events):
                    number += 1
                    if isinstance(event, ClientLine):
                        yield dict(event.line)
                    elif not isinstance(event, End):
                        self._lose(f"{self._agent} sent something else than the light client's log")
                if standing.state != OPEN:
                    self._end(standing)
                    return
        finally:
            self._store.give_up(lease, "its driver gave it up")
            standing = self._store.standing([lease])[lease]
            bytes_ = {"agent_bytes_down": standing.down, "agent_bytes_up": standing.up}
            self.measured = {name: value + bytes_[name] for name, value in self.measured.items()}

    def _lease(self, bundle: Bundle, known: Sequence[Line], arguments: Sequence[str]) -> str:
        """Make the lease of one run; wait while the board is away, or has no slot."""
        manifest, folder = bundle.manifest, bundle.folder
        trial_id = manifest.settings.trial_id
        label = manifest.config["trial"].get("label") or trial_id
        trial = {"trial_id": trial_id, "label": label, "client": list(arguments)}
        journal = [ClientLine(line=line) for line in known]
        files = []
        for name, file in bundle.needed.items():
            path = folder / name
            files.append(StoredFile(BUNDLE, name, file.sha256, file.bytes, str(path), path.stat().st_mtime_ns))
        end = time.monotonic() + PATIENCE
        while True:
            self._wait_or_stop()
            try:
                leased = self._driver, self._agent, trial, journal, self._attempt, files, self.profile
                return self._store.lease(*leased)
            except RefusedError as error:
                if time.monotonic() > end:
                    self._lose(str(error), blameless=True)

    def _wait_or_stop(self) -> None:
        """Wait a moment, and keep the leases of this process alive. Raises StoppedError if a stop was requested."""
        from zo_sweeps.run.runner import StoppedError

        if self._should_stop():
            raise StoppedError
        if time.monotonic() - self._stamped > STAMP_SECONDS:
            with contextlib.suppress(Exception):  # a full disk, or a store that is busy: later
                self._store.drive(self._driver)
                self._stamped = time.monotonic()
        time.sleep(LOOK_SECONDS)

    def _end(self, lease: Lease) -> None:
        """Return if the client came to its end. Raises UserError if it failed."""
        if lease.state == OVER:
            self._lose(lease.why, blameless=lease.blameless)
        ended = Outcome.read(self._store.outcome(lease.id) or {})
        if ended.state is TrialState.FAILED:
            raise UserError(f"the light client failed on {self._agent}: {ended.error}")
        if ended.state is not TrialState.SUCCEEDED:
            self._lose(ended.error, blameless=ended.state is TrialState.CANCELLED)

    def _lose(self, why: str, *, blameless: bool = False) -> None:
        """End the attempt here; `BoardActor` reports why."""
        from zo_sweeps.run.runner import StoppedError

        self.lost, self.blameless = why or "its trial ended there without an outcome", blameless
        raise StoppedError


class BoardActor(TrialActor):
    """A `TrialActor` on the head for one agent that runs the light client.

    Args:
        target, threads, place: as of a `TrialActor`; the place is the agent's.
        store: path of the gateway's store.
        driver: a name of this actor's own.
    """

    def __init__(self, target: str, threads: int, place: Mapping[str, str], store: str, driver: str) -> None:
        super().__init__(target, threads, place)
        self._path, self._driver = Path(store), driver
        self._store: Store | None = None  # at first use: an actor of Ray whose constructor fails is dead for good
        self._board: Board | None = None

    def _run(
        self, trial: Trial, journal: list[Event], attempt: int, stop: Callable[[], bool], sharing: Sharing | None
    ) -> Outcome:
        assert sharing is None, "a program's steps are not shared"
        place = self._place["node"], self._place["profile"]
        self._store = self._store or Store(self._path, busy_seconds=BUSY_SECONDS)
        self._board = Board(self._store, self._driver, *place, attempt, stop)
        return run_guarded(self._target, trial, self, journal, attempt, stop, away=self._board)

    def drain(self, trial_id: str, attempt: int, cursor: int, wait: float) -> Drained:
        """Return as a `TrialActor` does. Raises LeaseLostError where the board is lost."""
        events, outcome, leaving = super().drain(trial_id, attempt, cursor, wait)
        board: Any = self._board
        if outcome is None or not board.lost:
            return events, outcome, leaving
        if board.blameless:
            return events, outcome, True
        if events:
            return events, None, leaving
        raise LeaseLostError(board.lost)
