"""What heads and workers have in common: labels, identity, arguments of `ray start`, the file that says one runs."""

from __future__ import annotations

import json
import math
import re
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from zo_sweeps import __version__
from zo_sweeps.core.errors import UserError
from zo_sweeps.devices.probe import probe

OBJECT_STORE_BYTES = 75 * 2**20  # the least that Ray takes: journals of kilobytes go through it
FIXED_PORTS = (
    "node-manager-port",
    "object-manager-port",
    "runtime-env-agent-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "metrics-export-port",
)


def sanitised(text: str) -> str:
    """A label's value as Ray allows it: at most 63 of [A-Za-z0-9._-], alphanumeric at both ends."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("._-")


def labels(device: str | None, identity: str, name: str = "") -> str:
    """For `ray start --labels`: zo.device (None: what this host is), zo.id, zo.name, zo.kind, zo.unified, zo.version.

    A label is what a node was when it joined; what changes is in the notes of its reporter.
    """
    host = probe()
    values = {
        "zo.device": device or host["profile"],
        "zo.id": identity,
        "zo.name": name or socket.gethostname(),
        "zo.kind": host["kind"],
        "zo.unified": str(host["unified"]).lower(),
        "zo.version": __version__,
    }
    return ",".join(f"{key}={sanitised(value)}" for key, value in values.items() if sanitised(value))


def new_identity(folder: Path) -> str:
    """Who this node is, before and after a restart."""
    path = folder / "id"
    if not path.exists():
        path.write_text(secrets.token_hex(6))
    return path.read_text().strip()


def node_arguments(
    temp_dir: Path, cpus: int | None, gpus: int | None, memory_bytes: int | None, ports: str
) -> list[str]:
    """Of `ray start`, on any node. None: as Ray finds it (which is no GPU on a Jetson).

    Raises UserError for a bad range of ports.
    """
    found = [f"--temp-dir={temp_dir}", f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats"]
    found.append("--include-log-monitor=false")  # 80 MB to send drivers what our drivers do not show
    given = {"num-cpus": cpus, "num-gpus": gpus, "memory": memory_bytes}
    found += [f"--{name}={value}" for name, value in given.items() if value is not None]
    if not ports:
        return [*found, "--min-worker-port=0", "--max-worker-port=0"]
    first, last = port_range(ports)
    found += [f"--{name}={first + i}" for i, name in enumerate(FIXED_PORTS)]
    return [*found, f"--min-worker-port={first + len(FIXED_PORTS)}", f"--max-worker-port={last}"]


def port_range(text: str) -> tuple[int, int]:
    """ "10000-10050" as two numbers. Raises UserError unless it has room for a node."""
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1024 <= first < last <= 65535 or last - first < 20:
        raise UserError(f"{text!r} is no range of at least 21 ports", where="--ports", fix="as in 10000-10050")
    return first, last


def running(path: Path) -> Mapping[str, Any] | None:
    """What the file says (with `pid` and `started`), unless that process is gone or is another one."""
    try:
        found = json.loads(path.read_text())
        process = psutil.Process(found["pid"])
        return found if found["pid"] and alive(process) and abs(process.create_time() - found["started"]) < 1 else None
    except (OSError, ValueError, psutil.Error):
        return None


def alive(process: psutil.Process) -> bool:
    """Whether it runs. One that ended may never be collected by its parent, or by a container's first process."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def wait_until_gone(processes: Sequence[psutil.Process], seconds: float = math.inf) -> bool:
    """Whether all have ended within `seconds`."""
    end = time.monotonic() + seconds
    while any(map(alive, processes)):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
