"""Nodes of a cluster that are not Ray's: the agents, which the package `[agents]` brings. Without it there are none.

It offers them as the entry point `agents` of the group `zo_sweeps.part`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from zo_sweeps.core.trial import Trial
from zo_sweeps.methods import registry
from zo_sweeps.schedule.placement import Node


class LeaseLostError(Exception):
    """The lease of a trial is over: its agent is silent, or its key was revoked. The message says which."""


class Agents(Protocol):
    """The agents of the cluster that this driver has joined."""

    def nodes(self) -> Sequence[Node]:
        """Return the agents that can take this driver's trials. Cost: about 1 ms."""

    def takes(self, trial: Trial) -> bool:
        """Return whether there may be agents that take a trial; some take none, whatever they are."""

    def slot(self, node: Node, threads: int, target: str) -> Any:
        """Return what has the methods of a Ray actor of `TrialActor`, for one trial at a time, in so many threads.

        Unless the node is `light`, it is no actor, and `give_up(trial_id, attempt)` ends its trial.

        Args:
            target: the RunTrial, as "module:function".
        """

    def close(self) -> None:
        """End this driver's leases."""


class NoAgents(Agents):
    """No agent at all."""

    def nodes(self) -> Sequence[Node]:
        return ()

    def takes(self, trial: Trial) -> bool:
        return False

    def slot(self, node: Node, threads: int, target: str) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


def agents() -> Agents:
    """Return the agents of the cluster that this process joins. Raises UserError if their package is broken."""
    offered = registry.offered("part")
    made: Agents = registry.load(offered["agents"])() if "agents" in offered else NoAgents()
    return made
