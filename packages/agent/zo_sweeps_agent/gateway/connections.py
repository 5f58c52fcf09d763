"""The connections to the gateway: at most so many, and each closed that sends no whole request in time."""

from __future__ import annotations

import asyncio
from asyncio import sslproto
from typing import Any

from aiohttp import web

from zo_sweeps_agent.gateway import limits

READ_BYTES = 2**14  # what one TLS record holds at most


def read_in_small_parts() -> None:
    """Let asyncio keep a buffer of READ_BYTES for each TLS connection of this process, in place of its 256 KiB."""
    sslproto.SSLProtocol.max_size = READ_BYTES


class Connections:
    """The connections, and which of them have sent no whole request yet."""

    def __init__(self) -> None:
        self._silent: set[Any] = set()  # aiohttp's protocols

    def accept(self, server: web.Server) -> asyncio.Protocol:
        """Return the protocol of a new connection to `server`: its own, or one that closes it at once."""
        if len(server.connections) + len(self._silent) > limits.CONNECTIONS:
            return _Refused()
        connection = server()
        self._silent.add(connection)
        asyncio.get_running_loop().call_later(limits.HANDSHAKE_SECONDS, self._drop, connection)
        return connection

    def spoke(self, connection: Any) -> None:
        """Note that a connection has sent a whole request."""
        self._silent.discard(connection)

    def _drop(self, connection: Any) -> None:
        if connection in self._silent:
            self._silent.discard(connection)
            if connection.transport is not None:
                connection.transport.close()


class _Refused(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
