"""The agents of a running cluster, as a driver sees them: their nodes, and one actor on the head for all leases."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from typing import Any

from zo_sweeps.core.trial import Trial
from zo_sweeps.schedule.placement import Node
from zo_sweeps_agent.agent_facts import Note
from zo_sweeps_agent.agents import OF_DRIVER, AgentSlot, Proxies, bound_to_hosts, nodes
from zo_sweeps_agent.boards import BoardActor
from zo_sweeps_ray import cluster, private
from zo_sweeps_ray.choice import Agents

CALLS = 10_000  # at a time: one of `drain` per trial
CLOSE_SECONDS = 5.0


class ClusterAgents(Agents):
    """The agents of the cluster that this driver has joined."""

    def __init__(self) -> None:
        self._driver = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._proxies: Any = None
        self._store = ""
        self._seen = (0.0, 0.0)  # when the last note was written by the head's clock, and first seen here (monotonic)

    def nodes(self) -> list[Node]:
        """Return the agents that can take this driver's trials. Cost: about 1 ms."""
        note = None
        with contextlib.suppress(Exception):  # Ray raises any kind of error while the head shuts down
            note = private.joined_notes().notes(private.AGENTS).get("")
        if note is None:
            return []
        parsed = Note.of(note)
        self._store = parsed.store
        now = time.monotonic()
        if self._seen[0] != parsed.time:
            self._seen = (parsed.time, now)
        return nodes(parsed, self._driver, now - self._seen[1])

    def takes(self, trial: Trial) -> bool:
        """Return whether some agent might run a trial."""
        return not bound_to_hosts(trial)

    def slot(self, node: Node, threads: int, target: str) -> Any:
        """Return a proxy for one trial at a time on an agent, in a process of so many threads.

        Args:
            target: the RunTrial, as "module:function".
        """
        if node.light:
            return self._board(node, threads, target)
        if self._proxies is None:
            self._proxies = self._start()
        return AgentSlot(self._proxies, node, threads)

    def close(self) -> None:
        """End this driver's leases."""
        import ray

        if self._proxies is not None:
            with contextlib.suppress(Exception):  # the head may be gone; then they end a while after this driver
                ray.get(self._proxies.close.remote(), timeout=CLOSE_SECONDS)
            self._proxies = None

    def _start(self) -> Any:
        import ray

        return (
            ray.remote(Proxies)
            .options(
                num_cpus=0,
                max_concurrency=CALLS,
                max_restarts=-1,  # what it knows is in the store
                max_task_retries=-1,
                scheduling_strategy=_on_the_head(),
            )
            .remote(self._store, self._driver)
        )

    def _board(self, node: Node, threads: int, target: str) -> Any:
        """Return an actor on the head for an agent that runs the light client; it holds none of the head's CPUs."""
        import ray

        own = f"{self._driver}{OF_DRIVER}{secrets.token_hex(4)}"
        return (
            ray.remote(concurrency_groups={"ctl": 2})(BoardActor)  # type: ignore[call-overload]  # Ray does not type it
            .options(num_cpus=0, max_restarts=0, scheduling_strategy=_on_the_head())
            .remote(target, threads, {"node": node.name, "profile": node.device}, self._store, own)
        )


def _on_the_head() -> Any:
    """Return the strategy that places an actor on the machine of the head, where the store is."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    head = next(one["NodeID"] for one in ray.nodes() if one["Alive"] and cluster.HEAD in one["Resources"])
    return NodeAffinitySchedulingStrategy(head, soft=False)
