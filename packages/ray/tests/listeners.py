"""What a cluster's processes listen on, what they say to a stranger there, and SECURITY.md's table of it."""

from __future__ import annotations

import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from tests.conftest import REPO

EVERYWHERE, LOOPBACK, OWN = "all interfaces", "127.0.0.1", "the node's address"
CALLS = (  # one of each of Ray's services
    "NodeInfoGcsService/GetAllNodeInfo",
    "NodeManagerService/GetNodeStats",
    "ObjectManagerService/Push",
    "CoreWorkerService/GetCoreWorkerStats",
    "ReporterService/ReportOCMetrics",
)


@dataclass(frozen=True)
class Listener:
    """A listening port; `process` is cut to 15 characters, as the kernel keeps its name."""

    process: str
    where: str
    address: tuple[str, int]


def listeners(processes: Iterable[psutil.Process]) -> set[Listener]:
    """Return every listening port of the processes."""
    found = set()
    for process in processes:
        for connection in process.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN:
                host, port = connection.laddr
                host = host.removeprefix("::ffff:")
                where = EVERYWHERE if host in ("::", "0.0.0.0") else LOOPBACK if host == LOOPBACK else OWN
                at = LOOPBACK if where == EVERYWHERE else host
                found.add(Listener(process.name()[:15], where, (at, port)))
    return found


def documented() -> set[tuple[str, str]]:
    """Return (process, where) of every row of SECURITY.md's table of ports."""
    text = (REPO / "SECURITY.md").read_text().partition("### Ports")[2].partition("###")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")][2:]
    places = (EVERYWHERE, LOOPBACK, OWN)
    return {
        (name[:15], where)
        for row in rows
        for name in re.findall(r"`(.*?)`", row[2])
        for where in places
        if where in row[3]
    }


def refuses(listener: Listener) -> bool:
    """Return whether the port answers a caller without a token with a refusal, by gRPC or HTTP."""
    host, port = listener.address
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(f"http://{host}:{port}/metrics", timeout=5)
        return False
    except urllib.error.HTTPError as error:
        return error.code == 401
    except (OSError, http.client.HTTPException):  # a port of gRPC
        pass
    import grpc

    codes = set()
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        for call in CALLS:
            try:
                channel.unary_unary(f"/ray.rpc.{call}")(b"", timeout=5)
                return False
            except grpc.RpcError as error:
                codes.add(error.code())
    return grpc.StatusCode.UNAUTHENTICATED in codes
