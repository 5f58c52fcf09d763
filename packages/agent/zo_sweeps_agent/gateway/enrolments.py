"""What a machine without a certificate may ask: the authority's certificate, and one of its own for a one-time code."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from zo_sweeps import __version__
from zo_sweeps_agent import protocol
from zo_sweeps_agent.codes import SECRET_BYTES
from zo_sweeps_agent.gateway import limits
from zo_sweeps_agent.gateway.exchange import ProblemError, answer, body_of
from zo_sweeps_agent.gateway.identity import Authority, new_serial, read_request
from zo_sweeps_agent.gateway.limits import Buckets
from zo_sweeps_agent.gateway.writer import Writer
from zo_sweeps_agent.leases import CodeError, KeyUsedError, RefusedError
from zo_sweeps_agent.protocol import Enrolled, Enrolment


class Enrolments:
    """The requests of strangers.

    Args:
        write: to the store.
        authority: signs agents' certificates.
        log: prints a line about an agent that enrols or is refused.
    """

    def __init__(self, write: Writer, authority: Authority, log: Callable[[str], None]) -> None:
        self._write, self._authority, self._log = write, authority, log
        self._wrong = Buckets(limits.WRONG_RATE, limits.WRONG_BURST)

    @property
    def routes(self) -> list[web.RouteDef]:
        """Its requests."""
        return [web.get("/v1/ca", self._ca), web.post("/v1/enrol", self._enrol)]

    async def _ca(self, request: web.Request) -> web.Response:
        return answer(protocol.AuthorityReply(self._authority.certificate.decode(), __version__))

    async def _enrol(self, request: web.Request) -> web.Response:
        address = request.remote or ""
        if wait := self._wrong.wait(address, take=False):
            raise ProblemError(429, "too many wrong codes from this address", retry=wait)
        asked = await body_of(request, Enrolment, limits.STRANGER_BYTES)
        name, device = asked.name, asked.device
        try:
            key, secret = read_request(asked.csr), bytes.fromhex(asked.code_secret)
        except ValueError as error:
            raise ProblemError(400, f"malformed request for a certificate ({error})") from None
        if len(secret) != SECRET_BYTES:
            raise ProblemError(400, "malformed one-time code")
        try:
            serial = await self._write(lambda store: store.enrol(secret, name, device, key.digest, new_serial()))
        except CodeError:
            if self._wrong.wait(address):
                raise ProblemError(429, "too many wrong codes from this address", retry=1 / limits.WRONG_RATE) from None
            self._log(f"{address}: wrong one-time code for {name}")
            raise
        except KeyUsedError as error:
            raise ProblemError(409, f"{error}; the same command again makes a new one") from None
        except RefusedError as error:
            same = (
                f"if it is this board, at a new address of the head: zo-sweeps agent move URL on it; else revoke {name}"
            )
            raise ProblemError(409, f"{error}; choose another --name, or {same} (zo-sweeps devices revoke)") from None
        self._log(f"{name} ({device}) enrolled from {address}")
        certificate = self._authority.sign(key, name, serial).decode()
        return answer(Enrolled(name, certificate, self._authority.certificate.decode()))
