"""The actors that run trials: the choice of one for a trial, of the node of a new one, and of idle ones to end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from zo_sweeps.core.trial import Trial
from zo_sweeps.schedule.agents import AgentSlot, bound_to_hosts
from zo_sweeps.schedule.placement import HOSTS, Node, gpus_needed, preference, refusal, takes_main_memory
from zo_sweeps.schedule.ray_actor import TrialActor
from zo_sweeps.schedule.ray_agents import Agents
from zo_sweeps.schedule.sharing import Workers


@dataclass
class Slot:
    """An actor, and the attempt that it runs (None: idle)."""

    actor: Any
    node: Node
    gpus: int
    warm_key: str = ""
    trial: Trial | None = None
    attempt: int = 0
    cursor: int = 0  # events received and delivered
    pending: Any = None  # the reference of the outstanding `drain`
    asked: float = 0.0  # time of that call (monotonic)
    heard: bool = False  # it has answered once; a new one may still be starting
    memory_bytes: int = 0  # memory that it holds: its trial's, or, when idle, its last trial's
    followers: list[Slot] = field(default_factory=list)  # slots that share its trial's steps, with no `pending`


class Slots:
    """The slots of one backend, and their nodes. Iteration skips slots that are given up.

    Args:
        target: the RunTrial, as "module:function", importable on every node.
        cpus: CPUs per slot.
        limit: slots at a time; None: as many as CPUs (and GPUs) allow.
        workers: slots that share a trial's steps.
        agents: of the cluster.
    """

    def __init__(self, target: str, cpus: int, limit: int | None, workers: Workers, agents: Agents) -> None:
        self._target, self._cpus, self._limit, self._workers, self._agents = target, cpus, limit, workers, agents
        self.nodes: list[Node] = []
        self.silent: list[
            Slot
        ] = []  # given up; their nodes take no trial until the actor answers or Ray reports it dead
        self._slots: list[Slot] = []
        self._avoided: dict[str, float] = {}  # nodes that leave, or seem dead: node_id -> end of the ban (monotonic)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def see(self, nodes: list[Node]) -> None:
        """Replace the nodes, and forget idle slots on other nodes; an empty list (the head is silent) forgets none."""
        self.nodes, now = nodes, time.monotonic()
        self._avoided = {node_id: until for node_id, until in self._avoided.items() if until > now}
        if alive := {node.node_id for node in nodes if not node.is_agent}:
            self._slots = [slot for slot in self._slots if slot.trial or slot.node.node_id in alive]

    def avoid(self, node: Node, seconds: float) -> None:
        """Place no trial on the node for so many seconds."""
        self._avoided[node.node_id] = time.monotonic() + seconds

    def take(self, trial: Trial, attempt: int, kind: str | None) -> Slot:
        """Take a slot for the trial, an idle one or a new one."""
        slot, node = self.choose(trial, kind)
        if slot is None:
            assert node is not None, "submit without a fit"
            slot = self._new(node, gpus_needed(trial.needs, node))
        slot.trial, slot.attempt, slot.cursor, slot.warm_key = trial, attempt, 0, trial.warm_key
        slot.memory_bytes = trial.needs.memory_bytes
        self._free_memory(slot)
        return slot

    def give_up(self, slot: Slot) -> None:
        """Move a slot without a heartbeat to `silent`, where it stays until it answers or Ray reports it dead."""
        self._slots.remove(slot)
        self.silent.append(slot)

    def drop(self, slot: Slot) -> None:
        """End an actor."""
        import ray

        (self._slots if slot in self._slots else self.silent).remove(slot)
        if isinstance(slot.actor, AgentSlot):
            if slot.trial:
                slot.actor.give_up(slot.trial.trial_id, slot.attempt)
            return
        ray.kill(slot.actor)  # even if it seems dead: an actor that is only unreachable must not go on

    def clear(self) -> None:
        """Forget all slots; Ray ends the actors with their driver."""
        self._slots.clear()
        self.silent.clear()

    def nodes_for(self, trial: Trial) -> list[Node]:
        """Return the nodes without agents, where agents cannot take a trial whatever they are."""
        if self._workers.of_trial(trial) > 1 or bound_to_hosts(trial):
            return [node for node in self.nodes if not node.is_agent]
        return self.nodes

    def kind(self, trial: Trial) -> str | None:
        """Return a device profile with free slots for all of a trial's workers; "" if none has, None: no restriction.

        All workers of a trial share one profile, because losses round differently on another.
        """
        count = self._workers.of_trial(trial)
        if count == 1:
            return None
        for kind in dict.fromkeys(
            n.device for n in sorted(self.nodes_for(trial), key=lambda n: preference(trial.needs, n))
        ):
            if self._has_room(trial, kind, count):
                return kind
        return ""

    def choose(self, trial: Trial, kind: str | None = None) -> tuple[Slot | None, Node | None]:
        """Return the idle slot to use, warm if possible; (None, node): make one on the node; (None, None): wait.

        `kind`: only nodes of that device profile.
        """
        nodes = [node for node in self.nodes_for(trial) if not refusal(trial.needs, node, self._cpus)]
        nodes = [node for node in nodes if kind is None or node.device == kind]
        away = {slot.node.node_id for slot in self.silent} | self._avoided.keys()
        nodes = [node for node in nodes if node.node_id not in away and self._memory_left(trial, node)]
        nodes.sort(key=lambda node: preference(trial.needs, node))
        homes = {node.node_id: gpus_needed(trial.needs, node) for node in nodes}
        lent = {node.node_id: node.slots for node in nodes}
        idle = [slot for slot in self._slots if slot.trial is None and homes.get(slot.node.node_id) == slot.gpus]
        idle = [slot for slot in idle if self._is_lent(slot.node, lent[slot.node.node_id])]
        if idle:
            warm = next((slot for slot in idle if slot.warm_key == trial.warm_key), None)
            return warm or min(idle, key=lambda slot: preference(trial.needs, slot.node)), None
        busy = [slot for slot in self._slots if slot.trial]  # idle actors make way for a new one
        return None, next((node for node in nodes if self._room(node, homes[node.node_id], busy)), None)

    def _is_lent(self, node: Node, slots: int | None) -> bool:
        """Return whether a node still lends the slots there: another driver may have taken an idle one of an agent."""
        return slots is None or sum(slot.node.node_id == node.node_id for slot in self._slots) <= slots

    def _has_room(self, trial: Trial, kind: str, count: int) -> bool:
        """Return whether `count` slots are free: take them, with placeholders for new ones, and give them back."""
        before, taken = self._slots, []
        self._slots = list(before)
        try:
            for _ in range(count):
                slot, node = self.choose(trial, kind)
                if slot is None:
                    if node is None:
                        return False
                    slot = Slot(None, node, gpus_needed(trial.needs, node))
                    self._slots.append(slot)
                taken.append((slot, slot.memory_bytes))
                slot.trial, slot.memory_bytes = trial, trial.needs.memory_bytes
            return True
        finally:
            for slot, held in taken:
                slot.trial, slot.memory_bytes = None, held
            self._slots = before

    def _memory_left(self, trial: Trial, node: Node) -> bool:
        if not takes_main_memory(trial.needs, node):
            return True
        there = [slot for slot in self._slots if slot.trial and slot.node.node_id == node.node_id]
        return sum(map(_main_memory, there)) + trial.needs.memory_bytes <= node.memory_bytes

    def _room(self, node: Node, gpus: int, slots: Sequence[Slot]) -> bool:
        """Return whether one more actor fits on `node` in addition to `slots`."""
        here = [slot for slot in slots if slot.node.node_id == node.node_id]
        return (
            (not self._limit or len(slots) < self._limit)
            and (len(here) + 1) * self._cpus <= node.cpus
            and sum(slot.gpus for slot in here) + gpus <= node.gpus
            and (node.slots is None or len(here) < node.slots)
        )

    def _new(self, node: Node, gpus: int) -> Slot:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        while not self._room(node, gpus, self._slots):
            idle = [slot for slot in self._slots if slot.trial is None]
            self.drop(min(idle, key=lambda slot: slot.node.node_id != node.node_id))
        if node.is_agent:
            self._slots.append(Slot(self._agents.slot(node, self._cpus), node, gpus))
            return self._slots[-1]
        actor = (
            ray.remote(concurrency_groups={"ctl": 2})(TrialActor)  # type: ignore[call-overload]
            .options(
                num_cpus=self._cpus,
                num_gpus=gpus,
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            )
            .remote(self._target, self._cpus, {"node": node.name, "profile": node.device})
        )
        slot = Slot(actor, node, gpus)
        self._slots.append(slot)
        return slot

    def _free_memory(self, slot: Slot) -> None:
        """End idle actors on the node of `slot` until the memory held there is no more than the node lends."""
        here = [other for other in self._slots if other.node.node_id == slot.node.node_id]
        idle = [other for other in here if other.trial is None]
        while idle and sum(map(_main_memory, here)) > slot.node.memory_bytes:
            here.remove(idle[-1])
            self.drop(idle.pop())


def _main_memory(slot: Slot) -> int:
    """Return the main memory that an actor holds on its node: with a GPU of its own, next to none."""
    return 0 if slot.gpus and slot.node.device in HOSTS else slot.memory_bytes
