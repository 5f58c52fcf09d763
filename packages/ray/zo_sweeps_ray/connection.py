"""The driver's connection to Ray: a cluster of its own or a running one, its nodes, the other drivers, its loss."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.schedule.backend import CannotJoinError, HeadLostError
from zo_sweeps.schedule.placement import Node
from zo_sweeps_ray import choice, cluster, private
from zo_sweeps_ray.fairness import Asks, Claim
from zo_sweeps_ray.private import Head

NAME_LABEL, PROGRAMS_LABEL = "zo.name", "zo.programs"
OBJECT_STORE_BYTES = 100 * 2**20  # only journals of kilobytes go through it; the default takes 30 % of the memory
NODE_LOST = "its node is gone or out of reach"
UNREACHABLE_SECONDS = 15.0  # Ray ends this process after 60 s without a head
LIVE_SECONDS = 10.0  # a driver whose note does not change for so long has ended
FRESH_SECONDS = 3.0  # for so long a note knows better than Ray and the store of agents what its driver holds


class Connection:
    """This process's connection to a Ray cluster: a new local one, or the one at `address` ("host:port").

    `state_dir` keeps the token of local clusters.

    Attributes:
        driver: this process's name, unique in the cluster.
        user: that runs it.
    """

    def __init__(self, state_dir: Path, address: str | None) -> None:
        self._state_dir, self.address = state_dir, address
        self._opened = contextlib.ExitStack()
        self._unreachable_since: float | None = None
        host = socket.gethostname()
        self.user = _user()
        self.driver = f"{self.user}, pid {os.getpid()} on {host}"
        self._note = f"{host}-{os.getpid()}"  # key of this driver's note at the head
        self._seen: dict[str, tuple[float, float]] = {}  # key -> (its note's time, when we first read that: monotonic)
        self._asked: list[Asks] = []  # of the autoscaler, by this driver
        self.agents = choice.agents() if address else choice.Agents()

    def start_local(self, cpus: int) -> None:
        """Start a cluster on this machine. Raises UserError when Ray does not start."""
        token = cluster.private_token(self._state_dir)
        folder = cluster.short_folder(self._state_dir)
        self._opened.callback(cluster.remove_short_folder, self._state_dir)
        self._opened.enter_context(cluster.environment({**cluster.QUIET, **cluster.token_environment(token.resolve())}))
        try:
            with cluster.environment(cluster.NOT_FOR_TRIALS):  # which Ray's processes inherit
                ray_options = {"object_store_memory": OBJECT_STORE_BYTES, "_temp_dir": str(folder)}
                options = dict(address="local", num_cpus=cpus, include_dashboard=False, **ray_options)
                try:
                    self._init(**options)
                except Exception as error:  # Ray raises a plain Exception
                    if not private.is_late(error):
                        raise
                    self._init(**options)
        except Exception as error:  # Ray raises any kind of error, mostly for a starved process or a full disk
            raise UserError(
                f"Ray did not start on this machine ({private.first_line(error)})",
                fix="free space in /tmp and /dev/shm; on a busy machine, run the same command again; or use "
                "executor=inline, which needs no Ray",
            ) from error

    def join(self) -> None:
        """Join the cluster at `address`. Raises CannotJoinError when that fails."""
        assert self.address
        auth = cluster.joining_environment(self._state_dir, self.address)
        try:
            cluster.must_answer(self.address)
            auth |= cluster.tls_environment(auth, self.address)
            self._opened.enter_context(cluster.environment({**cluster.QUIET, **auth}))
            Head(self.address, auth).must_have_this_machine()
            self._init(address=self.address)
        except UserError as error:
            raise CannotJoinError(str(error)) from None
        except Exception as error:  # Ray raises any kind of error
            raise CannotJoinError(
                f"cannot join the Ray cluster at {self.address} ({private.first_line(error)})",
                where="cluster.address",
                fix="run `zo-sweeps worker join` here first, and set RAY_AUTH_TOKEN_PATH to the head's token file",
            ) from error

    def nodes(self) -> list[Node]:
        """Return the nodes that take trials: alive, and not asked to leave.

        Raises HeadLostError; returns [] while the head cannot be reached.
        """
        import ray

        if self.address and not self._head_answers(self.address):
            return []
        alive = cluster.living(ray.nodes())
        leaving = private.leaving_nodes() if self.address else set()
        nodes = [node_of(description) for description in alive if description["NodeID"] not in leaving]
        return [*nodes, *self.agents.nodes()]

    def exchange(self, runs: Mapping[str, list[str]], mine: Claim) -> list[Claim]:
        """Write this driver's note (runs: node id -> labels of trials), and return the other drivers' claims.

        With an autoscaler, nodes are asked for. Returns [] while the head does not answer. Cost: about 1 ms per driver.
        """
        if self._unreachable_since is not None:
            return []
        note, others = {**asdict(mine), "time": time.time(), "runs": dict(runs)}, list[Claim]()
        with contextlib.suppress(Exception):  # Ray raises any kind of error while the head shuts down
            notes = private.joined_notes()
            notes.put(private.RUNS + self._note, note)
            others = self._claims(notes.notes(private.RUNS))
        self.ask_for_nodes(mine, others)
        return others

    def _claims(self, notes: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
        """Return the claims in the notes of other drivers that have not ended."""
        now, live = time.monotonic(), []
        for key, note in notes.items():
            if key == self._note:
                continue
            if self._seen.get(key, (0.0, 0.0))[0] != note["time"]:  # the clocks of two hosts may differ
                self._seen[key] = (note["time"], now)
            age = now - self._seen[key][1]
            if age < LIVE_SECONDS:
                places = {at: tuple(held) for at, held in note["places"].items()} if age < FRESH_SECONDS else {}
                said = {name: note[name] for name in ("driver", "used", "held", "user", "priority")}
                live.append(Claim(**said, wants=tuple(note["wants"]), places=places, asks=tuple(note["asks"])))
        return live

    def ask_for_nodes(self, mine: Claim, others: Sequence[Claim]) -> None:
        """Ask a cluster with an autoscaler (Kubernetes) for nodes with room for all sweeps; others ignore it.

        The last request counts, whoever made it: so one driver asks for all, the first by its name.
        """
        if any(other.driver < mine.driver for other in others):
            self._asked = []  # another asks
        else:
            self._ask([claim.asks for claim in (mine, *others) if claim.asks[0]])

    def _ask(self, asks: list[Asks]) -> None:
        if asks == self._asked:
            return
        from ray.autoscaler.sdk import request_resources

        self._asked = asks
        every = [(dict(bundle), dict(labels)) for count, bundle, labels in asks for _ in range(count)]
        bundles, labels = [bundle for bundle, _ in every], [selector for _, selector in every]
        with contextlib.suppress(Exception):  # Ray raises any kind of error while the head shuts down
            request_resources(bundles=bundles, bundle_label_selectors=labels)

    def close(self) -> None:
        import ray

        if self.address and ray.is_initialized() and self._unreachable_since is None:
            self._ask([])  # if it is the one that asks: the next one asks when it finds this driver's claim gone
            with contextlib.suppress(Exception):  # as above
                private.joined_notes().remove(private.RUNS + self._note)
        self.agents.close()
        ray.shutdown()
        self._opened.close()

    def _init(self, **options: Any) -> None:
        import ray

        private.forget_token()
        self._opened.enter_context(private.muted())
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)

    def _head_answers(self, address: str) -> bool:
        """Return whether the head answers. Ask before Ray, which aborts the process if it meets a different head."""
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), 2.0).close()
        except OSError as error:
            since = self._unreachable_since = self._unreachable_since or time.monotonic()
            if isinstance(error, ConnectionRefusedError) or time.monotonic() - since > UNREACHABLE_SECONDS:
                raise HeadLostError(
                    f"the Ray head at {address} is gone", fix="start it again; the same command resumes the sweep"
                ) from None
            return False
        self._unreachable_since = None
        return True


def why_lost(error: Exception) -> str:
    """Return one line on the death of an actor, without its ids."""
    if isinstance(cause := getattr(error, "cause", None), choice.LeaseLostError):
        return str(cause)
    kind = type(error).__name__
    if kind == "OutOfMemoryError" or "low on memory" in str(error):
        return "its process was killed because the node ran low on memory"
    if kind in ("ActorUnavailableError", "NodeDiedError", "ActorUnschedulableError") or "node has died" in str(error):
        return NODE_LOST
    return "its process ended unexpectedly (killed, or crashed)"


def node_of(description: Mapping[str, Any]) -> Node:
    """Convert one entry of `ray.nodes()` to a Node."""
    resources, labels = description["Resources"], description.get("Labels", {})
    gpus, prefix = resources.get("GPU", 0.0), cluster.TOOL_LABEL
    tools = (f"{key.removeprefix(prefix)} {version}" for key, version in labels.items() if key.startswith(prefix))
    return Node(
        node_id=description["NodeID"],
        name=labels.get(NAME_LABEL) or description["NodeManagerHostname"],
        device=labels.get(cluster.DEVICE_LABEL, "cuda" if gpus else "cpu"),
        cpus=resources.get("CPU", 0.0),
        gpus=gpus,
        memory_bytes=int(resources.get("memory", 0)),
        # Absent on the node of a local cluster: `this_host` has left out what cannot run there.
        programs=labels.get(PROGRAMS_LABEL) != "false",
        tools=frozenset(tools) if PROGRAMS_LABEL in labels else None,
        gpu_bytes=int(labels.get(cluster.GPU_LABEL, 0)),
        version=labels.get(cluster.VERSION_LABEL, ""),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"user {os.getuid()}"
