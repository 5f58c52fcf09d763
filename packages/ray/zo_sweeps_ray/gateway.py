"""The gateway that dial-out agents reach the head by, as `head`, `devices` and the reporter use it.

The package of the extra `[agents]` has it, and offers it as the entry point `gateway` of the group `zo_sweeps.part`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from zo_sweeps.methods import registry

if TYPE_CHECKING:
    from zo_sweeps_ray.inventory import Machine
    from zo_sweeps_ray.private import Head

PORT = 7443
LEASE_MINUTES = 60.0
CODE_MINUTES = 15.0
Say = Callable[[str], None]
Own = tuple[str, str] | None  # files of a certificate chain of the user's own, and of its key


class Gateway(Protocol):
    """The gateway of a head's folder."""

    log: str  # the name of its log, in the folder

    def prepare(self, folder: Path, host: str, own: Own, say: Say) -> None:
        """Check the certificate, and set a damaged store of agents aside. Raises UserError."""

    def process(self, folder: Path, host: str, port: int, minutes: float, own: Own, say: Say) -> Any:
        """Return its process, to `keep_up` (start unless it runs) and `stop`; agents may be silent for `minutes`."""

    def joining(self, folder: Path, host: str, port: int, minutes: float, own: Own) -> Sequence[str]:
        """Return the lines that tell how a board joins, with a new one-time code for so many minutes."""

    def must_be_well(self, folder: Path) -> None:
        """Raise UserError for a damaged store of agents."""

    def publish(self, head: Head, folder: Path) -> None:
        """Leave the note on its agents at the head, for drivers and `devices`."""

    def devices(self, note: Any) -> Sequence[Machine]:
        """Return the agents of such a note."""

    def revoke(self, folder: Path, name: str) -> None:
        """Revoke an agent's key at once. Raises UserError if there is no such agent."""


def gateway() -> Gateway:
    """Return the gateway. Raises UserError, with what to install, without its package."""
    if error := registry.absent("part", "gateway"):
        raise error
    made: Gateway = registry.load(registry.offered("part")["gateway"])()
    return made
