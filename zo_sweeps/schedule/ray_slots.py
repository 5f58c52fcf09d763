"""The actors that run trials: the choice of one for a trial, of the node of a new one, and of idle ones to end."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zo_sweeps.core.trial import Trial
from zo_sweeps.schedule.agents import AgentSlot, bound_to_hosts
from zo_sweeps.schedule.fairness import Claim, first_served
from zo_sweeps.schedule.placement import HOSTS, Node, gpus_needed, main_memory, preference, refusal
from zo_sweeps.schedule.ray_actor import TrialActor
from zo_sweeps.schedule.ray_agents import Agents
from zo_sweeps.schedule.sharing import Workers

LOOSE = 1.5  # an actor runs no trial that needs less than its memory divided by this: others may need the rest
WANTED_SECONDS = 3.0  # a wish that was not repeated for so long has been granted
IDLE_SECONDS = 30.0  # an idle actor keeps its base model for so long, on a cluster that others use too
LEFT_SECONDS = 10.0  # time allowed for another sweep to take a slot that is left to it
MOST_BUNDLES = 100
GIVEN_SECONDS = 1.0  # ... and for so long where another sweep waits


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
    memory_bytes: int = 0  # main memory that it holds in Ray, for as long as it lives
    idle_since: float = 0.0  # monotonic
    followers: list[Slot] = field(default_factory=list)  # slots that share its trial's steps, with no `pending`


class Slots:
    """The slots of one backend, and their nodes. Iteration skips slots that are given up.

    Args:
        target: the RunTrial, as "module:function", importable on every node.
        cpus: CPUs per slot.
        limit: slots at a time; None: as many as CPUs (and GPUs) allow.
        workers: slots that share a trial's steps.
        agents: of the cluster.
        driver: this sweep's name among the drivers of a cluster.
    """

    def __init__(
        self, target: str, cpus: int, limit: int | None, workers: Workers, agents: Agents, driver: str = ""
    ) -> None:
        self._target, self._cpus, self._limit, self._workers, self._agents = target, cpus, limit, workers, agents
        self._driver = driver
        self.nodes: list[Node] = []
        self.silent: list[
            Slot
        ] = []  # given up; their nodes take no trial until the actor answers or Ray reports it dead
        self._slots: list[Slot] = []
        self.others: Sequence[Claim] = ()  # of other drivers on the cluster
        self._taken: dict[str, tuple[float, float, float]] = {}  # node_id -> CPUs, GPUs, bytes that others hold there
        self._used: defaultdict[str, float] = defaultdict(float)  # CPU-seconds by device profile
        self._counted = time.monotonic()
        self._left: dict[str, float] = {}  # node_id -> since when a free slot is left to another sweep
        self._bundle: dict[str, float] = {}  # the resources of one slot
        self._wanted: dict[str, float] = {}  # device profile -> when a trial last found no slot there (monotonic)
        self._avoided: dict[str, float] = {}  # nodes that leave, or seem dead: node_id -> end of the ban (monotonic)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def see(self, nodes: list[Node], free: Mapping[str, Mapping[str, float]]) -> None:
        """Replace the nodes, and forget idle slots on other nodes; an empty list (the head is silent) forgets none.

        Args:
            free: node id -> what nobody holds there; of a node that is left out, nobody else holds anything.
        """
        self.nodes, now = nodes, time.monotonic()
        self._taken = {
            node.node_id: self._of_others(node, free[node.node_id]) for node in nodes if node.node_id in free
        }
        busy = [slot for slot in self._slots if slot.trial]
        room = {node.node_id for node in nodes if self._room(node, 0, 0, busy)}
        self._left = {node_id: since for node_id, since in self._left.items() if node_id in room}
        for slot in busy:
            if slot.heard:
                self._used[slot.node.device] += (now - self._counted) * self._cpus
        self._counted = now
        self._avoided = {node_id: until for node_id, until in self._avoided.items() if until > now}
        if alive := {node.node_id for node in nodes if not node.is_agent or node.light}:
            self._slots = [slot for slot in self._slots if slot.trial or slot.node.node_id in alive]

    def claim(self) -> Claim:
        """Return what this sweep holds and wants, for the other drivers."""
        held: defaultdict[str, float] = defaultdict(float)
        for slot in self._slots:
            if slot.trial:
                held[slot.node.device] += self._cpus
        now = time.monotonic()
        wants = [device for device, when in self._wanted.items() if now - when < WANTED_SECONDS]
        return Claim(self._driver, dict(self._used), dict(held), tuple(wants))

    def hear(self, others: Sequence[Claim]) -> None:
        """Take the claims of the other drivers into account, and end the idle actors that they wait for.

        A sweep that begins counts from the least that another has used: it need not catch up with hours.
        """
        self.others = others
        for device in {device for other in others for device in other.used} - self._used.keys():
            self._used[device] = min(other.used[device] for other in others if device in other.used)
        wanted, now = {device for other in others for device in other.wants}, time.monotonic()
        for slot in [slot for slot in self._slots if slot.trial is None]:
            if now - slot.idle_since > (GIVEN_SECONDS if slot.node.device in wanted else IDLE_SECONDS):
                self.drop(slot)

    def want(self, trial: Trial) -> None:
        """Note that the trial found no slot now."""
        if trial.needs.device in ("auto", *HOSTS) and "GPU" not in self._bundle:  # no autoscaler adds an edge device
            self._bundle = {"CPU": self._cpus, **({"GPU": 1.0} if trial.needs.device == "cuda" else {})}
        if self._limit and sum(slot.trial is not None for slot in self._slots) >= self._limit:
            return
        for node in self.nodes:
            if not refusal(trial.needs, node, self._cpus):
                self._wanted[node.device] = time.monotonic()

    def bundles(self, trials: int) -> list[dict[str, float]]:
        """Return the resources of the slots that so many trials could use; [] if no trial has waited."""
        count = min(trials, self._limit or trials, MOST_BUNDLES)
        return [self._bundle] * count if self._bundle else []

    def holders(self) -> list[str]:
        """Return the drivers that hold slots of the device profiles that this sweep waits for."""
        wants = self.claim().wants
        return [other.driver for other in self.others if any(other.held.get(device) for device in wants)]

    def avoid(self, node: Node, seconds: float) -> None:
        """Place no trial on the node for so many seconds."""
        self._avoided[node.node_id] = time.monotonic() + seconds

    def take(self, trial: Trial, attempt: int, kind: str | None) -> Slot:
        """Take a slot for the trial, an idle one or a new one."""
        slot, node = self.choose(trial, kind)
        if slot is None:
            assert node is not None, "submit without a fit"
            slot = self._new(node, gpus_needed(trial.needs, node), main_memory(trial.needs, node))
        slot.trial, slot.attempt, slot.cursor, slot.warm_key = trial, attempt, 0, trial.warm_key
        return slot

    def free(self, slot: Slot) -> None:
        """Note that a slot's trial has ended."""
        slot.trial = slot.pending = None
        slot.idle_since = time.monotonic()

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
        nodes = [node for node in nodes if node.node_id not in away]
        nodes.sort(key=lambda node: preference(trial.needs, node))
        homes = {node.node_id: (gpus_needed(trial.needs, node), main_memory(trial.needs, node)) for node in nodes}
        mine = self.claim() if self.others else Claim("")
        idle = [slot for slot in self._slots if slot.trial is None and slot.node.node_id in homes]
        idle = [slot for slot in idle if _suits(slot, *homes[slot.node.node_id])]
        idle = [slot for slot in idle if not first_served(mine, self.others, slot.node.device, warm=True)]
        lent = {node.node_id: node.slots for node in nodes}
        idle = [slot for slot in idle if self._is_lent(slot.node, lent[slot.node.node_id])]
        if idle:
            warm = next((slot for slot in idle if slot.warm_key == trial.warm_key), None)
            return warm or min(idle, key=lambda slot: preference(trial.needs, slot.node)), None
        busy = [slot for slot in self._slots if slot.trial]  # idle actors make way for a new one
        nodes = [node for node in nodes if self._room(node, *homes[node.node_id], busy)]
        return None, next((node for node in nodes if not self._leaves(node, mine)), None)

    def _leaves(self, node: Node, mine: Claim) -> bool:
        """Return whether a free slot on `node` is left to another sweep: for a while only, as that may have no use."""
        if not first_served(mine, self.others, node.device, warm=False):
            return False
        now = time.monotonic()
        return now - self._left.setdefault(node.node_id, now) < LEFT_SECONDS

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
                    memory = main_memory(trial.needs, node)
                    slot = Slot(None, node, gpus_needed(trial.needs, node), memory_bytes=memory)
                    self._slots.append(slot)
                taken.append(slot)
                slot.trial = trial
            return True
        finally:
            for slot in taken:
                slot.trial = None
            self._slots = before

    def _of_others(self, node: Node, free: Mapping[str, float]) -> tuple[float, float, float]:
        """Return the CPUs, GPUs and memory of a node that are neither free nor held by this sweep.

        A new actor counts once it has answered: before, what it holds may not be known to Ray yet.
        """
        here = [slot for slot in (*self._slots, *self.silent) if slot.node.node_id == node.node_id]
        here = [slot for slot in here if slot.heard]
        return (
            max(0.0, node.cpus - free.get("CPU", 0.0) - len(here) * self._cpus),
            max(0.0, node.gpus - free.get("GPU", 0.0) - sum(slot.gpus for slot in here)),
            max(0.0, node.memory_bytes - free.get("memory", 0.0) - sum(slot.memory_bytes for slot in here)),
        )

    def _room(self, node: Node, gpus: int, memory: int, slots: Sequence[Slot]) -> bool:
        """Return whether one more actor fits on `node` in addition to `slots` and to what others hold there."""
        here = [slot for slot in slots if slot.node.node_id == node.node_id]
        cpus_taken, gpus_taken, memory_taken = self._taken.get(node.node_id, (0.0, 0.0, 0.0))
        return (
            (not self._limit or len(slots) < self._limit)
            and (len(here) + 1) * self._cpus + cpus_taken <= node.cpus
            and sum(slot.gpus for slot in here) + gpus + gpus_taken <= node.gpus
            and sum(slot.memory_bytes for slot in here) + memory + memory_taken <= node.memory_bytes
            and (node.slots is None or len(here) < node.slots)
        )

    def _new(self, node: Node, gpus: int, memory: int) -> Slot:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        while not self._room(node, gpus, memory, self._slots):
            idle = [slot for slot in self._slots if slot.trial is None]
            self.drop(min(idle, key=lambda slot: slot.node.node_id != node.node_id))
        if node.is_agent:
            self._slots.append(Slot(self._agents.slot(node, self._cpus, self._target), node, gpus, memory_bytes=memory))
            return self._slots[-1]
        actor = (
            ray.remote(concurrency_groups={"ctl": 2})(TrialActor)  # type: ignore[call-overload]
            .options(
                num_cpus=self._cpus,
                num_gpus=gpus,
                memory=memory,
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            )
            .remote(self._target, self._cpus, {"node": node.name, "profile": node.device})
        )
        slot = Slot(actor, node, gpus, memory_bytes=memory)
        self._slots.append(slot)
        return slot


def _suits(slot: Slot, gpus: int, memory: int) -> bool:
    """Return whether an idle actor has the GPUs and the main memory for a trial, and not much more memory."""
    return slot.gpus == gpus and memory <= slot.memory_bytes <= LOOSE * memory
