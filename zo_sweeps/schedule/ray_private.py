"""Everything of Ray that is not its public interface, with the reason for each use.

Ray may change these in any minor version, so `ray` is pinned to the tested one in pyproject.toml. To move the pin: read
this page against the new version, then run tests/schedule, tests/fleet and the tests marked `chaos`.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CLI = "ray.scripts.scripts"  # `python -m` runs the `ray` command of this interpreter, wherever its scripts folder is
RAYLET = "raylet"  # name of a node's main process; `ray start --block` does not say which of its children that is
ACTOR_TITLE = "ray::"  # begins the title of an actor's process, before its class; Ray gives no process ids of actors
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


def put_note(key: str, note: bytes, namespace: bytes) -> None:
    """Store a note at the head of this connected driver. The public interface has no key-value store."""
    store: Any = importlib.import_module("ray.experimental.internal_kv")
    store._internal_kv_put(key.encode(), note, overwrite=True, namespace=namespace)


def remove_note(key: str, namespace: bytes) -> None:
    """Delete a note of this connected driver."""
    store: Any = importlib.import_module("ray.experimental.internal_kv")
    store._internal_kv_del(key.encode(), namespace=namespace)


def notes(prefix: str, namespace: bytes) -> dict[str, bytes]:
    """Return the notes at this connected driver's head whose keys begin with `prefix`."""
    store: Any = importlib.import_module("ray.experimental.internal_kv")
    keys = store._internal_kv_list(prefix.encode(), namespace=namespace)
    texts = {key.decode(): store._internal_kv_get(key, namespace=namespace) for key in keys}
    return {key: text for key, text in texts.items() if text}


def free_resources() -> dict[str, dict[str, float]]:
    """Return node id -> resources that nobody holds, up to a second old. The public call adds all nodes up."""
    state: Any = importlib.import_module("ray._private.state")
    return dict(state.available_resources_per_node())


def get_note(key: str, namespace: bytes) -> bytes | None:
    """Return a note stored at the head of this connected driver; None if there is none."""
    store: Any = importlib.import_module("ray.experimental.internal_kv")
    note: bytes | None = store._internal_kv_get(key.encode(), namespace=namespace)
    return note


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


class ControlStore:
    """A client of a head's control store (GCS): nodes, notes and draining, without joining the cluster.

    `ray.init` would start a driver, needs a node on this machine, and is possible once per process; the public state
    interface needs the dashboard, which a head may run without.

    Args:
        address: "host:port".

    Raises `ray.exceptions.AuthenticationError` and `RpcError`.
    """

    def __init__(self, address: str) -> None:
        raylet: Any = importlib.import_module("ray._raylet")
        states: Any = importlib.import_module("ray._private.state")
        options = raylet.GcsClientOptions.create(
            address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
        )
        self._client = raylet.GcsClient(address=address)
        self._state = states.GlobalState()
        self._state._initialize_global_state(options)

    def metadata(self) -> bytes:
        """Return the cluster's versions, as JSON."""
        return self.get(b"CLUSTER_METADATA", b"cluster") or b"{}"

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes as `ray.nodes()` does."""
        return list(self._state.node_table())

    def leaving_nodes(self) -> set[str]:
        """Return ids of the nodes that were asked to leave."""
        return set(self._state.get_draining_nodes())

    def drain(self, node_id: str, reason: str, seconds: float) -> None:
        """Give a node no new work, and end it once it is idle, or after `seconds`. Only a hidden command offers it."""
        self._client.drain_node(node_id, _PREEMPTION, reason, int((time.time() + seconds) * 1000))

    def put(self, key: bytes, value: bytes, namespace: bytes) -> None:
        self._client.internal_kv_put(key, value, True, namespace=namespace)

    def get(self, key: bytes, namespace: bytes) -> bytes | None:
        value: bytes | None = self._client.internal_kv_get(key, namespace=namespace)
        return value

    def keys(self, prefix: bytes, namespace: bytes) -> list[bytes]:
        return list(self._client.internal_kv_keys(prefix, namespace=namespace))

    def remove(self, key: bytes, namespace: bytes) -> None:
        self._client.internal_kv_del(key, False, namespace=namespace)
