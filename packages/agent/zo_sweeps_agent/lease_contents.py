"""What a lease holds: the trial, its journal so far, and the files that the trial reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zo_sweeps.core.document import Shape, item

EVENTS = 10_000_000  # of a journal; its bytes are bounded where it is stored
FILES = 100_000
SHA256 = re.compile(r"[0-9a-f]{64}")
LEASE = re.compile(r"[0-9A-Za-z]{1,64}")  # a name of a folder on the board
PARTS = re.compile("model|data|hub|rows|bundle")  # of a trial, as `lease_files` and `boards` name them
THREADS = 4096


@dataclass(frozen=True)
class LeaseFile(Shape):
    """A file that a trial reads, as the head announces it.

    Args:
        of: the part of the trial that reads it. A board takes no other: what it does not know may be code.
        path: below that part's folder.
    """

    of: str = item(pattern=PARTS)
    path: str = item(most=4096)
    sha256: str = item(pattern=SHA256)
    bytes: int = item()


@dataclass(frozen=True)
class StoredFile(LeaseFile):
    """A file that a trial reads, on the head.

    Args:
        here: its absolute path.
        stamp: its time of change (nanoseconds).
    """

    here: str = item(most=4096)
    stamp: int = item(most=2**63)

    @property
    def announced(self) -> LeaseFile:
        """It, as an agent sees it."""
        return LeaseFile(self.of, self.path, self.sha256, self.bytes)


@dataclass(frozen=True)
class HeldContents(Shape):
    """What the head keeps of a lease.

    Args:
        trial: `Trial.to_json()`.
        journal: the events of earlier attempts.
        threads: of the trial's process.
        client: whether the agent is a client of the trial, which another machine leads; else it runs the trial.
    """

    trial: Mapping[str, Any] = item(entries=1000)
    journal: tuple[Mapping[str, Any], ...] = item((), entries=EVENTS)
    files: tuple[StoredFile, ...] = item((), entries=FILES)
    threads: int = item(1, most=THREADS)
    client: bool = False


@dataclass(frozen=True)
class LeaseContents(Shape):
    """What an agent gets of a lease.

    Args:
        held: events of this lease that the head has.
        client: as of `HeldContents`.
    """

    lease: str = item(pattern=LEASE)
    trial_id: str = item()
    attempt: int = item()
    held: int = item()
    trial: Mapping[str, Any] = item(entries=1000)
    journal: tuple[Mapping[str, Any], ...] = item((), entries=EVENTS)
    files: tuple[LeaseFile, ...] = item((), entries=FILES)
    threads: int = item(1, most=THREADS)
    client: bool = False
