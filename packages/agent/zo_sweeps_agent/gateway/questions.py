"""The rounds of a client: its answer up, the next question down, as bytes. The connection says whose answer it is."""

from __future__ import annotations

import asyncio
from functools import partial

from aiohttp import web

from zo_sweeps_agent.gateway import limits
from zo_sweeps_agent.gateway.admission import AGENT, Admission
from zo_sweeps_agent.gateway.presence import Presence
from zo_sweeps_agent.gateway.trials import open_lease
from zo_sweeps_agent.gateway.writer import Writer
from zo_sweeps_agent.leases import Store
from zo_sweeps_agent.protocol import QUESTION

LOOK_SECONDS = 0.05  # between looks at the store for a question


class Questions:
    """The request of an agent that is a client.

    Args:
        store: for the event loop.
        write: to the store.
        admission: of an agent whose key may be revoked while it waits.
        presence: is told that an agent which waits is there.
    """

    def __init__(self, store: Store, write: Writer, admission: Admission, presence: Presence) -> None:
        self._store, self._write, self._admission, self._presence = store, write, admission, presence

    @property
    def routes(self) -> list[web.RouteDef]:
        """Its request."""
        return [web.post("/v1/leases/{lease}/answers/{number:[0-9]{1,15}}", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        """Take the answer to a question; return the next one, or 204 if there is none for a while."""
        name, number = request[AGENT], int(request.match_info["number"])
        lease = open_lease(self._store, request).id
        body = await request.read()  # of 1 MiB at most, as aiohttp's applications take
        await self._write(lambda store: store.answered(lease, name, number, body))
        loop, version = asyncio.get_running_loop(), -1
        end = loop.time() + limits.WAIT_SECONDS
        while loop.time() < end:
            if (now := self._store.version()) != version:
                version = now
                self._admission.agent_of(request)
                open_lease(self._store, request)
                last, question = self._store.questions(lease, number)
                if last > number:
                    await self._write(partial(Store.sent, lease=lease, size=len(question)))
                    return web.Response(body=question, headers={QUESTION: str(last)})
            await asyncio.sleep(LOOK_SECONDS)
            self._presence.hear(name)
        return web.Response(status=204)
