"""The gateway's process, which `head start` keeps up.

head/   gateway.db (mode 0600), pki/, gateway.log

python -m zo_sweeps_agent.gateway.serve FOLDER --host ADDRESS --port PORT
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from zo_sweeps.core.errors import UserError
from zo_sweeps_agent import agent_records, codes, leases
from zo_sweeps_agent.gateway import limits
from zo_sweeps_agent.gateway.app import GatewayApp
from zo_sweeps_agent.gateway.challenges import ANSWERS, KINDS, Challenges, Known
from zo_sweeps_agent.gateway.connections import read_in_small_parts
from zo_sweeps_agent.gateway.identity import Authority
from zo_sweeps_agent.leases import Store
from zo_sweeps_ray.gateway import LEASE_MINUTES, PORT

PKI = "pki"
BACKLOG = 1024


def new_code(folder: Path, minutes: float, *, public: bool = False) -> str:
    """Return a new one-time code for the gateway of `folder`, valid for so many minutes.

    Args:
        public: the gateway has a certificate that boards check against authorities of their own.
    """
    agent_records.must_be_well(folder / leases.FILE)
    authority = Authority(folder / PKI)
    code = codes.new(None if public else authority.der)
    store = Store(folder / leases.FILE)
    store.add_code(code.secret, time.time() + minutes * 60)
    store.close()
    return code.text


async def serve(
    folder: Path,
    host: str,
    port: int,
    lease_seconds: float,
    own: tuple[str, str] | None = None,
    challenges: Mapping[str, Sequence[Known]] | None = None,
) -> None:
    """Serve until cancelled. A damaged store is set aside, and made again from the records.

    Args:
        own: files of a certificate chain and its key, in place of the gateway's own certificate.
        challenges: kind -> known-answer questions; of a kind that is left out, they are computed, meanwhile.

    Raises UserError when the port is taken, for a certificate that cannot be used, and when the store breaks.
    """
    read_in_small_parts()
    authority = Authority(folder / PKI)
    asked = {kind: Challenges(kind, _log, (challenges or {}).get(kind, ())) for kind in KINDS}
    agent_records.set_aside(folder / leases.FILE, _log)
    stores = Store(folder / leases.FILE), Store(folder / leases.FILE)
    stores[0].restore()
    gateway = GatewayApp(*stores, authority, lease_seconds, asked, _log)
    context = authority.server_context(host, own)
    bounds: dict[str, Any] = {"max_line_size": limits.HEADER_BYTES, "max_field_size": limits.HEADER_BYTES}
    runner = web.AppRunner(
        gateway.application(), access_log=None, keepalive_timeout=limits.IDLE_SECONDS, shutdown_timeout=2.0, **bounds
    )
    await runner.setup()
    asked[ANSWERS].start()  # six seconds, most of them imports; programs when a board asks for them
    loop = asyncio.get_running_loop()

    def connection() -> asyncio.Protocol:
        assert runner.server
        return gateway.connections.accept(runner.server)

    try:
        server = await loop.create_server(
            connection, host, port, ssl=context, ssl_handshake_timeout=limits.HANDSHAKE_SECONDS, backlog=BACKLOG
        )
    except OSError as error:
        await runner.cleanup()
        fix = "choose another with --gateway-port"
        raise UserError(f"port {port} cannot be used: {error.strerror}", where="the gateway", fix=fix) from None
    _log(f"listening at https://{host}:{port}")
    try:
        await gateway.broken.wait()
        raise UserError("the store of agents cannot be read", where=str(folder / leases.FILE))
    finally:
        server.close()
        for one in asked.values():
            one.stop()
        await runner.cleanup()
        stores[0].close()


def open_many_files() -> None:
    """Raise this process's limit of open files: each agent has a connection, and the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * limits.CONNECTIONS if hard == resource.RLIM_INFINITY else min(2 * limits.CONNECTIONS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _log(line: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), line, flush=True)


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m zo_sweeps_agent.gateway.serve")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--lease-minutes", type=float, default=LEASE_MINUTES)
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    options = parser.parse_args(arguments)
    own = (options.certificate, options.key) if options.certificate else None

    async def run() -> None:
        task = asyncio.create_task(serve(options.folder, options.host, options.port, options.lease_minutes * 60, own))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    open_many_files()
    try:
        asyncio.run(run())
    except UserError as error:
        _log(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
