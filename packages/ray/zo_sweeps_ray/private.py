"""Everything of Ray that is not its public interface, with the reason for each use.

Ray may change these in any minor version, so `ray` is pinned to the tested one in pyproject.toml. To move the pin: read
this page against the new version, then run packages/ray/tests, tests/schedule and the tests marked `chaos`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps_ray import cluster

CLI = "ray.scripts.scripts"  # `python -m` runs the `ray` command of this interpreter, wherever its scripts folder is
RAYLET = "raylet"  # name of a node's main process; `ray start --block` does not say which of its children that is
ACTOR_TITLE = "ray::"  # begins the title of an actor's process, before its class; Ray gives no process ids of actors
NOTES = b"zo"  # the namespace of the head's key-value store in which nodes and drivers leave notes for each other
NODE = "node/"  # + a machine: its facts
REACH, REACHED = "reach/", "reached/"  # + a nonce: a request to connect to a machine, and the answer
RUNS = "runs/"  # + a driver: the trials that it runs on each node
AGENTS = "agents"  # the agents of the head's gateway, and where their store is
SPEAKING_SECONDS = 30.0  # time allowed for a head to speak as one; after 60 Ray would end this process without a word
STARTING_SECONDS = 60.0  # time allowed for a head that answers to list its own node
_CURRENT = "ray_current_cluster"  # in Ray's folder: the head that a node joined last
_PREEMPTION = 2  # DrainNodeReason.PREEMPTION: with the other reason, IDLE_TERMINATION, a busy node refuses to leave


def forget_token() -> None:
    """Make Ray read its authentication mode and token again.

    Ray caches both per process, so a second cluster in one process would be joined with the first one's token.
    """
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def forget_head(temp_dir: Path) -> None:
    """Remove the note of the head that this folder's node joined last: with it, Ray refuses to start a head."""
    (temp_dir / _CURRENT).unlink(missing_ok=True)


def leaving_nodes() -> set[str]:
    """Return ids of the nodes that were asked to leave. Needs a connected driver; `ray.nodes()` omits this."""
    state: Any = importlib.import_module("ray._private.state")
    return set(state.state.get_draining_nodes())


class Notes:
    """The notes (JSON) at a head, which live as long as the head. The public interface has no key-value store.

    Args:
        client: of the head's control store.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, key: str, note: Mapping[str, Any]) -> None:
        """Store a note."""
        self._client.internal_kv_put(key.encode(), json.dumps(note).encode(), True, namespace=NOTES)

    def notes(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Return the notes whose keys begin with `prefix`, by the rest of the key."""
        keys = self._client.internal_kv_keys(prefix.encode(), namespace=NOTES)
        texts = {key.decode()[len(prefix) :]: self._client.internal_kv_get(key, namespace=NOTES) for key in keys}
        return {key: json.loads(text) for key, text in texts.items() if text}

    def remove(self, key: str) -> None:
        """Delete a note."""
        self._client.internal_kv_del(key.encode(), False, namespace=NOTES)


def joined_notes() -> Notes:
    """Return the notes at this connected driver's head."""
    return Notes(importlib.import_module("ray.experimental.internal_kv").internal_kv_get_gcs_client())


def free_resources() -> dict[str, dict[str, float]]:
    """Return node id -> resources that nobody holds, up to a second old. The public call adds all nodes up."""
    state: Any = importlib.import_module("ray._private.state")
    return dict(state.available_resources_per_node())


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Keep Ray from printing a paragraph on each death into the progress view; `log_to_driver=False` is not enough."""
    worker: Any = importlib.import_module("ray._private.worker")
    printer = worker.print_to_stdstream
    worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        worker.print_to_stdstream = printer


class Head(Notes):
    """A client of a head's control store (GCS): versions, nodes, draining and notes, without joining the cluster.

    `ray.init` would start a driver, needs a node on this machine, and is possible once per process; the public state
    interface needs the dashboard, which a head may run without.

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
        forget_token()
        from grpc import FutureTimeoutError
        from ray.exceptions import AuthenticationError, RpcError

        try:
            with _quiet():
                _must_speak(address)
                client, self._state = control_store(address)
        except AuthenticationError:
            what, (where, _) = f"the head at {address} refuses the token", cluster.token_source(auth)
            if not where:
                what += ": none is in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray, and the state folder is another's"
            raise UserError(what, where=where, fix=cluster.TOKEN_FIX) from None
        except (FutureTimeoutError, RpcError) as error:
            silent = isinstance(error, FutureTimeoutError)
            why = f"it says nothing for {SPEAKING_SECONDS:.0f} s" if silent else first_line(error)
            raise UserError(
                f"the server at {address} does not answer like a Ray head ({why})",
                where="cluster.address",
                fix="check the address; retry later if the head is very busy",
            ) from None
        super().__init__(client)

    def versions(self) -> dict[str, str]:
        """Return the head's Ray and Python versions."""
        metadata = json.loads(self._client.internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster") or b"{}")
        return {name: metadata.get(f"{name}_version", "") for name in ("ray", "python")}

    def nodes(self) -> list[dict[str, Any]]:
        """Return `ray.nodes()`, dead nodes included, with a `Leaving` flag; at most one node per machine is `Alive`."""
        leaving, nodes = set(self._state.get_draining_nodes()), self._state.node_table()
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
        until = int((time.time() + seconds) * 1000)
        self._client.drain_node(node_id, _PREEMPTION, "asked to leave", until)  # only a hidden command offers it


def _must_speak(address: str) -> None:
    """Raise grpc.FutureTimeoutError unless a gRPC server is there."""
    from grpc import channel_ready_future

    gcs: Any = importlib.import_module("ray._private.gcs_utils")
    channel = gcs.create_gcs_channel(address)
    try:
        channel_ready_future(channel).result(timeout=SPEAKING_SECONDS)
    finally:
        channel.close()


def control_store(address: str) -> tuple[Any, Any]:
    """Return the clients of a head's control store, and of its table of nodes. Raises errors of `ray.exceptions`."""
    raylet: Any = importlib.import_module("ray._raylet")
    states: Any = importlib.import_module("ray._private.state")
    options = raylet.GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    client, state = raylet.GcsClient(address=address), states.GlobalState()
    state._initialize_global_state(options)
    return client, state


def _must_be_ours(nodes: list[dict[str, Any]]) -> None:
    """Raise UserError when another user of this machine runs its nodes: Ray's sockets admit their owner only."""
    sockets = [Path(node["RayletSocketName"]) for node in nodes]
    if any(os.access(socket, os.R_OK | os.W_OK) for socket in sockets):
        return
    folders = [folder for folder in sockets[0].parents if os.path.lexists(folder) and folder != Path("/tmp")]
    try:
        owner = folders[0].owner() if folders else "another user"
    except KeyError:  # a user without a name
        owner = f"user {folders[0].stat().st_uid}"
    raise UserError(
        f"the Ray node on this machine runs as {owner}, and only {owner} can run sweeps on it",
        where="cluster.address",
        fix=f"run this command as {owner}, or on a machine whose node is yours (zo-sweeps worker join)",
    )


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


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def is_late(error: Exception) -> bool:
    """Return whether Ray gave up waiting for its own processes: it waits 30 s, and a busy machine may need more."""
    return "timed out during startup" in str(error)
