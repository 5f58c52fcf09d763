"""The notes by which the drivers of one cluster tell each other, and `devices`, what they run and wait for."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import time
from collections.abc import Mapping

from zo_sweeps.schedule import ray_private
from zo_sweeps.schedule.cluster import NOTES, RUNS
from zo_sweeps.schedule.fairness import NO_ASKS, Claim

LIVE_SECONDS = 10.0  # a driver whose note does not change for so long has ended
FRESH_SECONDS = 3.0  # for so long a note knows better than Ray and the store of agents what its driver holds


class Claims:
    """This driver's note at the head, and the claims of the other drivers. Needs a connected driver."""

    def __init__(self) -> None:
        host = socket.gethostname()
        self.user = _user()
        self.driver = f"{self.user}, pid {os.getpid()} on {host}"
        self._key = f"{RUNS}{host}-{os.getpid()}"
        self._seen: dict[str, tuple[float, float]] = {}  # key -> (its time, when we first read that: monotonic)

    def exchange(self, runs: Mapping[str, list[str]], mine: Claim) -> list[Claim]:
        """Write this driver's note (runs: node id -> labels of trials), and return the other drivers' claims.

        Returns [] while the head shuts down. Cost: about 1 ms per driver.
        """
        note = {"time": time.time(), "driver": mine.driver, "runs": dict(runs)}
        note |= {"used": dict(mine.used), "held": dict(mine.held), "wants": list(mine.wants)}
        note |= {"places": dict(mine.places), "user": mine.user, "priority": mine.priority, "asks": mine.asks}
        with contextlib.suppress(Exception):  # Ray raises any kind of error then; the sweep goes on
            ray_private.put_note(self._key, json.dumps(note).encode(), NOTES)
            return self._others()
        return []

    def withdraw(self) -> None:
        """Remove this driver's note."""
        with contextlib.suppress(Exception):
            ray_private.remove_note(self._key, NOTES)

    def _others(self) -> list[Claim]:
        now, live = time.monotonic(), []
        for key, text in ray_private.notes(RUNS, NOTES).items():
            note = json.loads(text)
            if key == self._key or "places" not in note:
                continue
            if self._seen.get(key, (0.0, 0.0))[0] != note["time"]:  # the clocks of two hosts may differ
                self._seen[key] = (note["time"], now)
            age = now - self._seen[key][1]
            if age < LIVE_SECONDS:
                places = {at: tuple(held) for at, held in note["places"].items()} if age < FRESH_SECONDS else {}
                # Absent: of a driver of an earlier version.
                whose = note.get("user", ""), note.get("priority", 0), tuple(note.get("asks", NO_ASKS))
                live.append(Claim(note["driver"], note["used"], note["held"], tuple(note["wants"]), places, *whose))
        return live


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"user {os.getuid()}"
