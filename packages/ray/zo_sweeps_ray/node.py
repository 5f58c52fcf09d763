"""Shared by the head and joining nodes: labels, identity, arguments of `ray start`, the file of a running process."""

from __future__ import annotations

import contextlib
import json
import math
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replace_text
from zo_sweeps.core.host import VERSION
from zo_sweeps.devices.probe import probe
from zo_sweeps_ray.cluster import GPU_LABEL, TOOL_LABEL, VERSION_LABEL, remove_short_folder, short_folder

OBJECT_STORE_BYTES = 75 * 2**20  # Ray's minimum: only journals of some kilobytes go through it
FIXED_PORTS = (
    "node-manager-port",
    "object-manager-port",
    "runtime-env-agent-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "metrics-export-port",
)


def sanitised(text: str) -> str:
    """Return `text` as a label value that Ray allows: at most 63 of [A-Za-z0-9._-], alphanumeric at both ends."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("._-")


def labels(device: str | None, identity: str, name: str = "") -> str:
    """Return the value of `ray start --labels`: zo.device, zo.id, zo.name, zo.kind, zo.unified, zo.programs,
    zo.version, zo.gpu_bytes (of GPUs with memory of their own), and zo.tool.NAME, the version of an installed tool.

    Labels are fixed when the node joins; facts that change are in its reporter's notes.

    Args:
        device: name of a device profile; None: this host's own.
    """
    host = probe()
    values = {
        "zo.device": device or host["profile"],
        "zo.id": identity,
        "zo.name": name or socket.gethostname(),
        "zo.kind": host["kind"],
        "zo.unified": str(host["unified"]).lower(),
        "zo.programs": str(host["executorch"]).lower(),
        VERSION_LABEL: VERSION,
        GPU_LABEL: str(host["memory_bytes"]) if host["kind"] == "cuda" else "",
        **{TOOL_LABEL + name: version for name, _, version in (tool.partition(" ") for tool in host["tools"])},
    }
    return ",".join(f"{key}={sanitised(value)}" for key, value in values.items() if sanitised(value))


def own_folder(folder: Path) -> Path:
    """Return the folder of a head or a worker, made if there is none. Raises UserError if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", where=str(folder), fix="use --state-dir FOLDER") from None
    return folder.resolve()


def new_identity(folder: Path) -> str:
    """Return this node's identity, made at its first start and the same after a restart."""
    path = folder / "id"
    if not path.exists():
        path.write_text(secrets.token_hex(6))
    return path.read_text().strip()


def node_arguments(cpus: int | None, gpus: int | None, memory_bytes: int | None, ports: str) -> list[str]:
    """Return what `ray start` is told of a node's share of its machine. Raises UserError for a bad range of ports.

    With None, Ray detects cpus, gpus and memory (on a Jetson it detects no GPU).
    """
    arguments = [f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats"]
    arguments.append("--include-log-monitor=false")  # it takes 80 MB to forward logs that our drivers do not show
    resources = {"num-cpus": cpus, "num-gpus": gpus, "memory": memory_bytes}
    arguments += [f"--{name}={value}" for name, value in resources.items() if value is not None]
    if not ports:
        return [*arguments, "--min-worker-port=0", "--max-worker-port=0"]
    first, last = port_range(ports)
    arguments += [f"--{name}={first + i}" for i, name in enumerate(FIXED_PORTS)]
    return [*arguments, f"--min-worker-port={first + len(FIXED_PORTS)}", f"--max-worker-port={last}"]


def port_range(text: str) -> tuple[int, int]:
    """Parse "10000-10050" into two numbers. Raises UserError unless the range has room for a node."""
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1024 <= first < last <= 65535 or last - first < 20:
        raise UserError(f"{text!r} is not a range of at least 21 ports", where="--ports", fix="as in 10000-10050")
    return first, last


@contextlib.contextmanager
def noted(path: Path, state: Mapping[str, Any]) -> Iterator[Path]:
    """Note this process in a file, for `running`, and yield a short folder for Ray; both go with the block."""
    process = psutil.Process()
    replace_text(path, json.dumps({**state, "pid": process.pid, "started": process.create_time()}))
    try:
        yield short_folder(path.parent)
    finally:
        path.unlink(missing_ok=True)
        remove_short_folder(path.parent)


def running(path: Path) -> Mapping[str, Any] | None:
    """Return the file's contents (with `pid` and `started`); None if that process is gone or its pid was reused."""
    try:
        state = json.loads(path.read_text())
        process = psutil.Process(state["pid"])
        return state if state["pid"] and alive(process) and abs(process.create_time() - state["started"]) < 1 else None
    except (OSError, ValueError, psutil.Error):
        return None


def terminate(process: psutil.Process) -> None:
    """Send SIGTERM. Raises UserError when the process is another user's."""
    try:
        process.terminate()
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        owner = process.username()
        raise UserError(f"pid {process.pid} runs as {owner}", fix=f"run this command as {owner}") from None


def alive(process: psutil.Process) -> bool:
    """Return whether the process runs; a zombie does not (its parent, or a container's init, may never reap it)."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def wait_until_gone(processes: Sequence[psutil.Process], seconds: float = math.inf) -> bool:
    """Wait for the processes to end; return whether all did within `seconds`."""
    end = time.monotonic() + seconds
    while any(map(alive, processes)):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def listens(host: str, port: int) -> bool:
    """Return whether something listens there."""
    with contextlib.suppress(OSError):
        socket.create_connection((host, port), 1.0).close()
        return True
    return False
