"""Which requests are admitted: an agent's with a certificate that the store holds as valid, and not too many of any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from zo_sweeps_agent.gateway import limits
from zo_sweeps_agent.gateway.exchange import ProblemError
from zo_sweeps_agent.gateway.limits import Buckets
from zo_sweeps_agent.gateway.presence import Presence
from zo_sweeps_agent.leases import Store

STRANGERS = {"/v1/ca", "/v1/enrol"}  # what may be asked without a certificate
AGENT = web.RequestKey("agent", str)  # of a request: the name of the agent whose certificate it has


class Admission:
    """The check of every request.

    Args:
        store: of the agents' keys.
        presence: is told whom it hears.
    """

    def __init__(self, store: Store, presence: Presence) -> None:
        self._store, self._presence = store, presence
        self._agents = Buckets(limits.AGENT_RATE, limits.AGENT_BURST)
        self._strangers = Buckets(limits.STRANGER_RATE, limits.STRANGER_BURST)
        self._inside: Counter[str] = Counter()  # address -> its requests without a certificate now

    @contextmanager
    def admit(self, request: web.Request) -> Iterator[None]:
        """Set `request[AGENT]`, and count a stranger's request until its answer, whose body is not read yet.

        Raises ProblemError for a stranger, a revoked key, and too many requests.
        """
        if request.path not in STRANGERS:
            name = request[AGENT] = self.agent_of(request)
            if wait := self._agents.wait(name):
                raise ProblemError(429, "too many requests", retry=wait)
            self._presence.hear(name)
            yield
            return
        address = request.remote or ""
        if wait := self._strangers.wait(address):
            raise ProblemError(429, "too many requests from this address", retry=wait)
        if self._inside[address] >= limits.STRANGERS_EACH:
            raise ProblemError(429, "too many requests from this address at a time", retry=limits.STRANGER_SECONDS)
        if self._inside.total() >= limits.STRANGERS:
            raise ProblemError(503, "too many requests without a certificate at a time", retry=limits.STRANGER_SECONDS)
        self._inside[address] += 1
        try:
            yield
        finally:
            self._inside[address] -= 1
            self._inside += Counter()  # forgets those that are 0

    def agent_of(self, request: web.Request) -> str:
        """Return the name of the agent whose certificate the connection has: TLS has checked it against our authority.

        Raises ProblemError if there is none, and for a revoked key.
        """
        certificate = request.get_extra_info("peercert")
        if not certificate:
            raise ProblemError(401, "this needs an agent's certificate; register with: zo-sweeps agent join")
        names = [value for entry in certificate["subject"] for key, value in entry if key == "commonName"]
        serial = self._store.serial_of(names[0]) if names else None
        if serial is None:
            raise ProblemError(401, "no agent has this certificate")
        if not serial or int(serial, 16) != int(certificate["serialNumber"], 16):
            raise ProblemError(403, f"the key of {names[0]} was revoked", revoked=True)
        return str(names[0])
