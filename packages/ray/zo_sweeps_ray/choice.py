"""The choice of a node for a trial: Ray's nodes and agents, their ranks, their losses, and the reason when none can.

Agents are brought by the package `[agents]` as the entry point `agents` of the group `zo_sweeps.part`. A node that
loses one trial after another, and finishes none between, is sick: it gets one trial at a time, and its losses are not
the trials', as long as another node could run them. A trial that was lost on a node goes to another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from zo_sweeps.core.trial import Needs, Trial
from zo_sweeps.core.units import bytes_text
from zo_sweeps.methods import registry
from zo_sweeps.methods.executor import Executor
from zo_sweeps.schedule.placement import HOSTS, Node, gpus_needed, processes, refusal


def reason(needs: Needs, nodes: Sequence[Node], cpus: int = 1) -> str:
    """Return why none of `nodes` can run a trial with these needs; "" when one can."""
    reasons = [(node.name, refusal(needs, node, cpus)) for node in nodes]  # several nodes of a host share its name
    if any(not text for _, text in reasons):
        return ""
    memory = f" and {bytes_text(needs.memory_bytes)} of memory" if needs.memory_bytes else ""
    device = "any device" if needs.device == "auto" else f"device {needs.device}"
    device = device if needs.gpus == 1 else f"{needs.gpus} GPUs of one node"
    each = "; ".join(f"{name} {text}" for name, text in list(dict.fromkeys(reasons))[:3])
    return f"needs {device}{memory}: 0 of {len(nodes)} nodes offer it" + (f" ({each})" if each else "")


def preference(needs: Needs, node: Node) -> tuple[int, int]:
    """Return a node's rank for a trial that it can run, ascending: nodes that trials request by name rank last.

    Of equal nodes the one with the smallest GPUs comes first: larger ones are for trials that fit nowhere else.
    """
    rank = 0 if needs.device != "auto" else 2 if node.device not in HOSTS else 0 if node.gpus else 1
    return rank, node.gpu_bytes


def no_room(options: Executor, trial: Trial, nodes: Sequence[Node]) -> str:
    """Return why the processes that share a trial never fit on nodes of one device profile; "" when they do."""
    count, cpus, room = processes(options, trial), options.cpus_per_trial, Counter[str]()
    if count == 1:
        return ""
    for node in nodes:
        if not refusal(trial.needs, node, cpus):
            cores = int(node.cpus // cpus)
            room[node.device] += min(cores, int(node.gpus)) if gpus_needed(trial.needs, node) else cores
    most = min(max(room.values(), default=0), options.slots or count)
    return "" if most >= count else f"executor.workers={count} of one kind of node: there is room for {most}"


# A node is left alone after a loss: at first for the one, then for twice as long each time, up to the other.
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 600.0
SICK = 3  # losses in a row, of more than one trial


@dataclass
class _Row:
    """The losses of a node since a trial finished there; those of processes that died together are one."""

    losses: int = 0
    until: float = 0.0  # the end of the pause after the last one (monotonic)
    trials: set[str] = field(default_factory=set)
    why: str = ""


class Losses:
    """The losses of one sweep, by node id. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._nodes_of: defaultdict[str, set[str]] = defaultdict(set)

    def lost(self, node_id: str, trial_id: str, why: str, now: float) -> float:
        """Count a loss; return for how many seconds the node is left alone."""
        row = self._rows.setdefault(node_id, _Row())
        row.trials.add(trial_id)
        row.why = why
        self._nodes_of[trial_id].add(node_id)
        if now >= row.until:
            row.losses += 1
            row.until = now + min(SHORTEST_SECONDS * 2 ** (row.losses - 1), LONGEST_SECONDS)
        return row.until - now

    def finished(self, node_id: str) -> None:
        """Note that a trial came to an end of its own on the node."""
        self._rows.pop(node_id, None)

    def is_sick(self, node_id: str) -> bool:
        """Return whether the node loses everything."""
        row = self._rows.get(node_id)
        return row is not None and row.losses >= SICK and len(row.trials) > 1

    def text(self, node_id: str) -> str:
        """Return the last cause of a node's losses, and how many there are in a row; "" if there are none."""
        row = self._rows.get(node_id)
        return f"lost {row.losses} trials in a row ({row.why})" if row else ""

    def nodes_of(self, trial_id: str) -> set[str]:
        """Return the ids of the nodes on which a trial was lost."""
        return self._nodes_of.get(trial_id, set())


class LeaseLostError(Exception):
    """The lease of a trial is over: its agent is silent, or its key was revoked. The message says which."""


class Agents:
    """The agents of the cluster that this driver has joined: none, without the package that has them."""

    def nodes(self) -> Sequence[Node]:
        """Return the agents that can take this driver's trials. Cost: about 1 ms."""
        return ()

    def takes(self, trial: Trial) -> bool:
        """Return whether there may be agents that take a trial; some take none, whatever they are."""
        return False

    def slot(self, node: Node, threads: int, target: str) -> Any:
        """Return what has the methods of a Ray actor of `TrialActor`, for one trial at a time, in so many threads.

        Unless the node is `light`, it is no actor, and `give_up(trial_id, attempt)` ends its trial.

        Args:
            target: the RunTrial, as "module:function".
        """
        raise NotImplementedError

    def close(self) -> None:
        """End this driver's leases."""


def agents() -> Agents:
    """Return the agents of the cluster that this process joins. Raises UserError if their package is broken."""
    offered = registry.offered("part")
    return registry.load(offered["agents"])() if "agents" in offered else Agents()
