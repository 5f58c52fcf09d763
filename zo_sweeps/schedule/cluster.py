"""What has to be in place before Ray starts: a token, a short folder, its environment, a head that answers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.schedule import ray_private

TOKEN_FIX = (
    "`zo-sweeps head start` said where the token is: copy that file here (mode 0600) and name it with --token-file "
    "or RAY_AUTH_TOKEN_PATH"
)
NOTES = b"zo"  # the namespace of the head's key-value store in which nodes and drivers leave notes for each other
RUNS = "runs/"  # + a driver: what it runs where
ID_LABEL, BEGAN_LABEL = "zo.id", "zo.began"  # a machine's, the same after a restart; when it began (Unix seconds)

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # silences a FutureWarning; the devices we see are the ones we ask for
}


def private_token(state_dir: Path) -> Path:
    """The file with the token of our local clusters, readable by its owner only; made at first use."""
    path = state_dir / "ray_token"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        os.chmod(path, 0o600)
        if path.stat().st_size:
            return path
        handle = os.open(path, os.O_WRONLY)  # its writer was killed before the first byte
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))
    return path


def short_folder(state_dir: Path) -> Path:
    """An empty folder for Ray's sockets and logs: their paths may have 107 bytes, too few for most state folders.

    The same one for the same state folder, so that what a killed driver left there is removed by the next.
    """
    digest = hashlib.sha256(str(state_dir.resolve()).encode()).hexdigest()[:10]
    folder = Path("/tmp") / f"zo-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UserError(f"{folder} belongs to someone else", fix="remove it, or use another state folder")
    for child in folder.iterdir():
        shutil.rmtree(child, ignore_errors=True)
    return folder


def token_environment(token: Path) -> dict[str, str | None]:
    """Environment variables of a process that talks to a cluster with the token in this file. None: taken away."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_AUTH_TOKEN": None}


def joining_environment(state_dir: Path, address: str) -> dict[str, str | None]:
    """How to authenticate to a standing cluster: as the environment says; else as the head that was started from
    `state_dir`, if that is the one; else with the user's own token, if there is one."""
    if mode := os.environ.get("RAY_AUTH_MODE"):
        return {"RAY_AUTH_MODE": mode}
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return {"RAY_AUTH_MODE": "token"}
    with contextlib.suppress(OSError, ValueError):
        head = json.loads((state_dir / "head" / "head.json").read_text())
        if head["address"] == address:
            return token_environment(Path(head["token_file"]))
    return {"RAY_AUTH_MODE": "token" if (Path.home() / ".ray" / "auth_token").exists() else "disabled"}


@contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Sets environment variables (None: takes one away), and puts back what was there."""
    before = {name: os.environ.get(name) for name in variables}
    set_environment(variables)
    try:
        yield
    finally:
        set_environment(before)


def set_environment(variables: Mapping[str, str | None]) -> None:
    """Sets environment variables; None takes one away."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def must_answer(address: str, timeout: float = 5.0) -> None:
    """Raises UserError unless something listens at `address` ("host:port")."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"{address!r} is not HOST:PORT", where="cluster.address", fix="as in 10.0.0.5:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except OSError as error:
        raise UserError(
            f"no Ray head answers at {address} ({error.strerror or error})",
            where="cluster.address",
            fix="check the address and the firewall, or leave cluster.address out for a cluster on this machine",
        ) from None


def await_answer(address: str) -> None:
    """Return when the head has answered for a while: it listens some seconds before it can be joined."""
    answered = 0
    while answered < 5:
        time.sleep(1)
        try:
            must_answer(address)
            answered += 1
        except UserError:
            answered = 0


def living(nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those of `ray.nodes()` that are alive, each machine as what it was last.

    A machine whose raylet was killed joins again within seconds, but Ray takes 14 to see that the node it was before is
    dead, and a frozen one 64. A trial that is given to that one is lost; also when the machine has left since.
    """
    last: dict[tuple[str, str], Mapping[str, Any]] = {}
    for node in nodes:
        key = (node["Labels"].get(ID_LABEL, node["NodeID"]), node["NodeManagerAddress"])
        if key not in last or _began(last[key]) < _began(node):
            last[key] = node
    return [dict(node) for node in last.values() if node["Alive"]]


def _began(node: Mapping[str, Any]) -> float:
    return float(node["Labels"].get(BEGAN_LABEL, 0.0))


def publish_runs(runs: Mapping[str, list[str]]) -> None:
    """Tells the head what this driver runs: node id -> labels of trials, for `zo-sweeps devices`. About 1 ms."""
    note = {"time": time.time(), "driver": f"pid {os.getpid()} on {socket.gethostname()}", "runs": dict(runs)}
    key = f"{RUNS}{socket.gethostname()}-{os.getpid()}"
    with contextlib.suppress(Exception):  # Ray's own, of any kind, when the head is going away: not worth a sweep
        ray_private.put_note(key, json.dumps(note).encode(), NOTES)
