"""An agent as the head knows it: what it says of itself, and the head's note on all agents for drivers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zo_sweeps.core.document import MalformedError, Shape, item
from zo_sweeps.core.errors import UserError
from zo_sweeps.devices.probe import Host, Reading

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")  # of an agent, and of a device profile
CPUS, SLOTS = 4096, 64
ROWS = 1000  # files
OFFLINE_SECONDS = 60.0  # without a request: an agent then gets no trial; its leases last longer, see `Store.reap`
# In `Agent.refused`, of the machine and not of what it lends: why it may not join, although its key is valid; that it
# left because its disk is full; that another machine has its key, too.
VERSION, ROOM, COPIED = REMARKS = ("version", "room", "copied")
ENROLLED, JOINED, LEFT, REVOKED = "enrolled", "joined", "left", "revoked"  # states of an agent


@dataclass(frozen=True)
class Facts(Shape):
    """What an agent says of itself.

    Args:
        zo_sweeps: version of this package there.
        probe: its hardware and libraries.
        profile: its device profile.
        cpus, gpus, memory_bytes, slots: what it lends, and to how many trials at a time.
        client: digest of the light client, which runs all of its trials; "": they run in PyTorch.
        rows: fingerprints of files of rows that it keeps: it is a client of trials that have one.
        lent: "noise" and precisions that it lends, as the head found; what an agent claims is overwritten.
    """

    zo_sweeps: str
    probe: Host
    profile: str = item(pattern=NAME)
    cpus: int = item(most=CPUS)
    gpus: int = item(most=64)
    memory_bytes: int = item(most=2**50)
    slots: int = item(most=SLOTS)
    client: str = ""
    rows: tuple[str, ...] = item((), entries=ROWS)
    lent: tuple[str, ...] = item(())


@dataclass(frozen=True)
class EnrolledAgent(Shape):
    """An enrolled agent.

    Args:
        key: digest of its public key.
        serial: of its valid certificate, hexadecimal.
        state: ENROLLED (not joined yet), JOINED, LEFT or REVOKED.
        slots: trials that it runs at a time.
        heard: time of its last request (Unix seconds).
        facts: what it said of itself when it joined; None: it has not joined with this version of the head.
        live: its last reading, if any.
        refused: what is not lent ("noise", a precision) -> why.
        answered: the conditions under which it answered the known-answer challenge; "": it has not.
        running: (driver, label) of each trial that it runs.
    """

    name: str
    key: str
    serial: str
    device: str
    state: str
    slots: int
    heard: float
    facts: Facts | None = None
    live: Reading | None = None
    refused: Mapping[str, str] = item(dict, most=1000)
    answered: str = item("", most=100_000)
    running: tuple[tuple[str, ...], ...] = item((), entries=SLOTS, most=100_000)

    def is_online(self, now: float) -> bool:
        """Return whether it joined and was heard of lately, so that it may get a trial."""
        return is_online(self.state, self.heard, now)


def is_online(state: str, heard: float, now: float) -> bool:
    """Return whether an agent of this state, heard of at this time, may get a trial."""
    return state == JOINED and now - heard < OFFLINE_SECONDS


@dataclass(frozen=True)
class Note(Shape):
    """The head's note on its agents, for drivers and `devices`.

    Args:
        time: when it was written (Unix seconds).
        store: path of the gateway's store, on the head.
    """

    time: float
    store: str = item(most=4096)
    agents: tuple[EnrolledAgent, ...] = item((), entries=100_000)

    @classmethod
    def of(cls, value: Any) -> Note:
        """Return the note that a head left, from parsed JSON. Raises UserError for one of another version."""
        try:
            return cls.read(value)
        except MalformedError as error:
            fix = "install the head's version of zo-sweeps here"
            raise UserError(f"the head's note on its agents has another form ({error})", fix=fix) from None
