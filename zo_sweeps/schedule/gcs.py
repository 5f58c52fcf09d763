"""Queries to a running head, without joining it: versions, nodes, and the notes that nodes leave there."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.schedule import cluster, ray_private

NODE, REACH, REACHED, RUNS, AGENTS = "node/", "reach/", "reached/", cluster.RUNS, cluster.AGENTS
_NAMESPACE = cluster.NOTES
STARTING_SECONDS = 60.0  # time allowed for a head that answers to list its own node


class Head:
    """A connection to a head.

    Args:
        address: "host:port".
        auth: the environment variables that hold its token, as `cluster.token_environment` gives them.

    Raises UserError when nothing answers there and when the token is refused. Cost: half a second, 70 MB.
    """

    def __init__(self, address: str, auth: Mapping[str, str | None]) -> None:
        self._address = address
        cluster.must_answer(address)
        tls = cluster.tls_environment(auth, address)
        cluster.set_environment({**cluster.QUIET, **auth, **tls})  # permanently: Ray may read them at any time
        ray_private.forget_token()
        from ray.exceptions import AuthenticationError, RpcError

        try:
            with _quiet():
                self._store = ray_private.ControlStore(address)
        except AuthenticationError:
            what, where = f"the head at {address} refuses the token", cluster.token_source(auth)
            if not where:
                what += ": none is in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray, and the state folder is another's"
            raise UserError(what, where=where, fix=cluster.TOKEN_FIX) from None
        except RpcError as error:
            raise UserError(
                f"the server at {address} does not answer like a Ray head ({_line(error)})",
                where="cluster.address",
                fix="check the address; retry later if the head is very busy",
            ) from None

    def versions(self) -> dict[str, str]:
        """Return the head's Ray and Python versions."""
        metadata = json.loads(self._store.metadata())
        return {"ray": metadata.get("ray_version", ""), "python": metadata.get("python_version", "")}

    def nodes(self) -> list[dict[str, Any]]:
        """Return `ray.nodes()`, dead nodes included, with a `Leaving` flag; at most one node per machine is `Alive`."""
        leaving, nodes = self._store.leaving_nodes(), self._store.nodes()
        alive = {node["NodeID"] for node in cluster.living(nodes)}
        return [{**n, "Alive": n["NodeID"] in alive, "Leaving": n["NodeID"] in leaving} for n in nodes]

    def must_have_this_machine(self) -> None:
        """Raise UserError unless one of its nodes is on this machine, and this user's: a driver needs its sockets."""
        import psutil

        here = {one.address for addresses in psutil.net_if_addrs().values() for one in addresses}
        deadline = time.monotonic() + STARTING_SECONDS
        while not (nodes := {node["NodeManagerAddress"] for node in self.nodes() if node["Alive"]}):
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)  # a head that has just started answers before it lists its own node
        if nodes & here:
            _must_be_ours([node for node in self.nodes() if node["Alive"] and node["NodeManagerAddress"] in here])
        else:
            raise UserError(
                f"this machine is not a node of the Ray cluster at {self._address} (nodes: {', '.join(sorted(nodes))})",
                where="cluster.address",
                fix=f"run the sweep on one of them, or join here first: zo-sweeps worker join {self._address} --cpus 0",
            )

    def own_node(self, identity: str) -> dict[str, Any] | None:
        """Return the live node with this `zo.id`; None if there is none."""
        nodes = (node for node in self.nodes() if node["Alive"] and node["Labels"].get(cluster.ID_LABEL) == identity)
        return next(nodes, None)

    def drain(self, node_id: str, seconds: float) -> None:
        """Give the node no new work, and end its raylet once it is idle, after `seconds` at the latest."""
        self._store.drain(node_id, "asked to leave", seconds)

    def put(self, key: str, note: Mapping[str, Any]) -> None:
        """Store a note (JSON) at the head, for as long as the head lives."""
        self._store.put(key.encode(), json.dumps(note).encode(), _NAMESPACE)

    def notes(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Return the notes whose keys begin with `prefix`, by the rest of the key."""
        notes = {}
        for key in self._store.keys(prefix.encode(), _NAMESPACE):
            text = self._store.get(key, _NAMESPACE)
            if text:
                notes[key.decode()[len(prefix) :]] = json.loads(text)
        return notes

    def remove(self, key: str) -> None:
        """Delete a note."""
        self._store.remove(key.encode(), _NAMESPACE)


def _must_be_ours(nodes: list[dict[str, Any]]) -> None:
    """Raise UserError when another user of this machine runs its nodes: Ray's sockets admit their owner only."""
    sockets = [Path(node["RayletSocketName"]) for node in nodes]
    if any(os.access(socket, os.R_OK | os.W_OK) for socket in sockets):
        return
    folders = [folder for folder in sockets[0].parents if os.path.lexists(folder) and folder != Path("/tmp")]
    owner = _name(folders[0].stat().st_uid) if folders else "another user"
    raise UserError(
        f"the Ray node on this machine runs as {owner}, and only {owner} can run sweeps on it",
        where="cluster.address",
        fix=f"run this command as {owner}, or on a machine whose node is yours (zo-sweeps worker join)",
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Ray's C++ code, which prints about a refused token; our error reports it in one line."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
