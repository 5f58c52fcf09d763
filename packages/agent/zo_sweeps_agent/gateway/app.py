"""The gateway's HTTP: what agents may ask, each of them for itself alone. JSON over TLS; no pickle, no code.

Without a certificate: GET /v1/ca and POST /v1/enrol. With an agent's, whose name and serial number the store must hold
as valid at every request: the rest. Errors are {"error": line} with a status: 400 malformed, 401 no certificate, 403
revoked, 404 unknown or another agent's, 409 in conflict, 410 lease over, 413 too large, 429 and 503 later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from aiohttp import web

from zo_sweeps_agent.gateway import downloads, limits, work
from zo_sweeps_agent.gateway.admission import STRANGERS, Admission
from zo_sweeps_agent.gateway.challenges import Challenges
from zo_sweeps_agent.gateway.connections import Connections
from zo_sweeps_agent.gateway.downloads import Downloads
from zo_sweeps_agent.gateway.enrolments import Enrolments
from zo_sweeps_agent.gateway.exchange import ProblemError, refuse
from zo_sweeps_agent.gateway.identity import Authority
from zo_sweeps_agent.gateway.joins import Joins
from zo_sweeps_agent.gateway.presence import Presence
from zo_sweeps_agent.gateway.questions import Questions
from zo_sweeps_agent.gateway.trials import Trials
from zo_sweeps_agent.gateway.work import OpenWork
from zo_sweeps_agent.gateway.writer import Writer
from zo_sweeps_agent.leases import (
    CodeError,
    GapError,
    LeaseOverError,
    RefusedError,
    Store,
    TooLargeError,
    UnknownLeaseError,
)
from zo_sweeps_agent.protocol import Refusal

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_STATUS: Mapping[type, int] = {UnknownLeaseError: 404, LeaseOverError: 410, TooLargeError: 413, CodeError: 403}


class GatewayApp:
    """The application and its tasks; `application` starts and ends them with the server.

    Args:
        reads: the store, for the event loop. writes: another connection to it.
        authority: signs agents' certificates.
        lease_seconds: silence of an agent that has taken a lease, before the lease is over.
        challenges: kind -> the known-answer questions that joining agents get.
        log: prints a line about an agent that enrols, joins or is refused.

    Attributes:
        connections: of the server that runs the application.
        broken: set when a task ended because it could not read the store.
    """

    def __init__(
        self,
        reads: Store,
        writes: Store,
        authority: Authority,
        lease_seconds: float,
        challenges: Mapping[str, Challenges],
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.connections, self._log, self.broken = Connections(), log, asyncio.Event()
        self._write = Writer(writes)
        self._presence = Presence(self._write, lease_seconds)
        self._admission = Admission(reads, self._presence)
        self._work = OpenWork(reads, self._admission, self._presence, self._write, log)
        self._parts = (
            Enrolments(self._write, authority, log),
            Joins(reads, self._write, self._presence, challenges, log),
            self._work,
            Trials(reads, self._write),
            Downloads(reads, self._write, self._presence),
            Questions(reads, self._write, self._admission, self._presence),
        )

    def application(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._guard])
        for part in self._parts:
            app.router.add_routes(part.routes)
        app.cleanup_ctx.append(self._tasks)
        return app

    async def _tasks(self, app: web.Application) -> AsyncIterator[None]:
        """Run the loops that look, note and reap, while the server runs."""
        loops = (self._work.look, self._presence.keep, self._presence.reap)
        tasks = [asyncio.create_task(loop()) for loop in loops]
        for task in tasks:
            task.add_done_callback(lambda _: self.broken.set())
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            await self._presence.flush()
        self._write.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request in time, or refuse it in one line."""
        self.connections.spoke(request.protocol)
        try:
            with self._admission.admit(request):
                return await asyncio.wait_for(handler(request), _seconds(request))
        except web.RequestPayloadError:
            return refuse(400, Refusal("the body cannot be decompressed"))
        except web.HTTPException as error:
            return refuse(error.status, Refusal(error.reason))
        except ProblemError as error:
            return refuse(error.status, error.refusal, error.retry)
        except GapError as error:
            return refuse(409, Refusal(str(error), expected=error.expected, differs=error.differs))
        except RefusedError as error:
            return refuse(_STATUS.get(type(error), 409), Refusal(str(error)))
        except asyncio.TimeoutError:
            return refuse(408, Refusal("the request took too long"))
        except ConnectionError:  # it was cut within a body: this reaches nobody, and the log needs no traceback
            return refuse(400, Refusal("the connection was cut"))
        except Exception as error:  # of the store: a full disk. The agent keeps its events, and comes back
            self._log(f"{request.path}: {type(error).__name__}: {error}")
            return refuse(503, Refusal("the head cannot store this now"), retry=10.0)


def _seconds(request: web.Request) -> float | None:
    """Return the seconds that a request may take; None: as long as it goes on."""
    resource = request.match_info.route.resource
    path = resource.canonical if resource else ""
    if path == downloads.PATH:
        return None
    if path in STRANGERS:
        return limits.STRANGER_SECONDS
    return limits.REQUEST_SECONDS + (limits.WAIT_SECONDS if path == work.PATH else 0.0)
