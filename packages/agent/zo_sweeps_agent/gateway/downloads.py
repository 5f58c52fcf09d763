"""The files of an agent's open leases, whole or from a byte on, a few at a time."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from aiohttp import web

from zo_sweeps_agent.gateway import limits
from zo_sweeps_agent.gateway.admission import AGENT
from zo_sweeps_agent.gateway.exchange import ProblemError
from zo_sweeps_agent.gateway.presence import Presence
from zo_sweeps_agent.gateway.trials import open_lease
from zo_sweeps_agent.gateway.writer import Writer
from zo_sweeps_agent.leases import Store

PATH = "/v1/leases/{lease}/files/{digest}"
TAKEN = 256  # leases whose list of files is kept in memory


class Downloads:
    """The requests for files.

    Args:
        store: for the event loop.
        write: to the store.
        presence: is told that an agent which fetches is there.
    """

    def __init__(self, store: Store, write: Writer, presence: Presence) -> None:
        self._store, self._write, self._presence = store, write, presence
        self._files_of = lru_cache(TAKEN)(lambda lease: store.contents(lease).files)
        self._running: Counter[str] = Counter()  # by agent

    @property
    def routes(self) -> list[web.RouteDef]:
        """Its request."""
        return [web.get(PATH, self._file)]

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name, digest, lease = request[AGENT], request.match_info["digest"], open_lease(self._store, request)
        file = next((one for one in self._files_of(lease.id) if one.sha256 == digest), None)
        if file is None:
            raise ProblemError(404, "no such file of this lease")
        if self._running[name] >= limits.DOWNLOADS:
            raise ProblemError(429, f"more than {limits.DOWNLOADS} downloads at a time", retry=2.0)
        path = Path(file.here)
        with contextlib.suppress(OSError):
            if path.stat().st_mtime_ns == file.stamp and path.stat().st_size == file.bytes:
                return _File(path, partial(self._note, name, lease.id))
        raise ProblemError(410, f"{file.path} has changed on the head since the trial was planned")

    async def _note(self, name: str, lease: str, begins: bool, size: int = 0) -> None:
        self._running[name] += 1 if begins else -1
        self._presence.hear(name)
        if not begins:
            await self._write(lambda store: store.sent(lease, size))


class _File(web.FileResponse):
    """A file, or the part of it that the request's Range asks for; `note` is called at its begin and its end."""

    def __init__(self, path: Path, note: Callable[..., Awaitable[None]]) -> None:
        super().__init__(path, chunk_size=1 << 18)
        self._note = note
        # Else asyncio's sendfile sends it, which over TLS goes on when the connection has been cut, and counts nothing.
        self.enable_compression(web.ContentCoding.identity)

    async def prepare(self, request: web.BaseRequest) -> Any:
        await self._note(True)
        try:
            return await super().prepare(request)
        finally:
            await self._note(False, min(self.content_length or 0, request.writer.output_size))
