"""Ray, seen from its driver: a cluster of our own on this machine or a standing one, its nodes, its silence."""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.schedule import cluster, ray_private
from zo_sweeps.schedule.backend import HeadLostError
from zo_sweeps.schedule.gcs import Head
from zo_sweeps.schedule.placement import Node

DEVICE_LABEL, NAME_LABEL = "zo.device", "zo.name"
OBJECT_STORE_BYTES = 100 * 2**20  # we pass journals of kilobytes; the default would take 30 % of the memory
NODE_LOST = "its node is gone or out of reach"
UNREACHABLE_SECONDS = 15.0  # without a head Ray ends this process after 60


class Connection:
    """This process's place in a Ray cluster: of our own, or the one at `address` ("host:port").

    Args:
        state_dir: keeps the token of local clusters.
    """

    def __init__(self, state_dir: Path, address: str | None) -> None:
        self._state_dir, self.address = state_dir, address
        self._opened = contextlib.ExitStack()
        self._unreachable_since: float | None = None

    def start_local(self, cpus: int) -> None:
        """Raises UserError when Ray does not start."""
        token = cluster.private_token(self._state_dir)
        folder = cluster.short_folder(self._state_dir)
        self._opened.callback(shutil.rmtree, folder, ignore_errors=True)
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token.resolve()), "RAY_AUTH_TOKEN": None}
        self._opened.enter_context(cluster.environment({**cluster.QUIET, **auth}))
        try:
            self._init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=str(folder),
            )
        except Exception as error:  # Ray's own, of any kind; a process that was starved or a full disk, mostly
            raise UserError(
                f"Ray did not start on this machine ({_line(error)})",
                fix="on a busy machine the same command may do; executor=inline needs no Ray; free space in /tmp and "
                "/dev/shm is what Ray needs most",
            ) from error

    def join(self) -> None:
        """Raises UserError when `address` cannot be joined."""
        assert self.address
        auth = cluster.joining_environment(self._state_dir, self.address)
        self._opened.enter_context(cluster.environment({**cluster.QUIET, **auth}))
        try:
            Head(self.address, auth).must_have_this_machine()
            self._init(address=self.address)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"cannot join the Ray cluster at {self.address} ({_line(error)})",
                where="cluster.address",
                fix="this machine must be a node of it, and RAY_AUTH_TOKEN_PATH name the file with the head's token",
            ) from error

    def nodes(self) -> list[Node]:
        """The nodes that take trials: alive, and not asked to leave.

        Raises HeadLostError; returns [] while the head cannot be reached.
        """
        import ray

        if self.address and not self._head_answers(self.address):
            return []
        alive = cluster.living(ray.nodes())
        leaving = ray_private.leaving_nodes() if self.address else set()
        return [_node(description) for description in alive if description["NodeID"] not in leaving]

    def publish(self, runs: Mapping[str, list[str]]) -> None:
        """Tells a standing cluster what this driver runs: node id -> labels of trials."""
        if self.address and self._unreachable_since is None:
            cluster.publish_runs(runs)

    def close(self) -> None:
        import ray

        ray.shutdown()
        self._opened.close()

    def _init(self, **options: Any) -> None:
        import ray

        ray_private.forget_token()
        self._opened.enter_context(ray_private.muted())
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)

    def _head_answers(self, address: str) -> bool:
        """Asked before Ray is, which aborts the process when it finds another head there than it joined."""
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), 2.0).close()
        except OSError as error:
            since = self._unreachable_since = self._unreachable_since or time.monotonic()
            if isinstance(error, ConnectionRefusedError) or time.monotonic() - since > UNREACHABLE_SECONDS:
                raise HeadLostError(
                    f"the Ray head at {address} is gone", fix="start it again; the same command goes on from there"
                ) from None
            return False
        self._unreachable_since = None
        return True


def why_lost(error: Exception) -> str:
    """One line on the death of an actor, without its ids."""
    kind = type(error).__name__
    if kind == "OutOfMemoryError" or "low on memory" in str(error):
        return "its process was killed because the node ran low on memory"
    if kind in ("ActorUnavailableError", "NodeDiedError", "ActorUnschedulableError") or "node has died" in str(error):
        return NODE_LOST
    return "its process ended unexpectedly (killed, or crashed)"


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _node(description: dict[str, Any]) -> Node:
    """One entry of `ray.nodes()` in our terms."""
    resources, labels = description["Resources"], description.get("Labels", {})
    gpus = resources.get("GPU", 0.0)
    return Node(
        node_id=description["NodeID"],
        name=labels.get(NAME_LABEL, description["NodeManagerHostname"]),
        device=labels.get(DEVICE_LABEL, "cuda" if gpus else "cpu"),
        cpus=resources.get("CPU", 0.0),
        gpus=gpus,
        memory_bytes=int(resources.get("memory", 0)),
    )
