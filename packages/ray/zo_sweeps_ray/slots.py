"""The actors that run trials: the choice of one for a trial, of the node of a new one, and of idle ones to end."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zo_sweeps.core.events import Event, Start, only
from zo_sweeps.core.host import GIB
from zo_sweeps.core.trial import Trial
from zo_sweeps.core.units import bytes_text
from zo_sweeps.methods.executor import Executor
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.schedule.placement import (
    HOSTS,
    Node,
    gpus_needed,
    main_memory,
    processes,
    refusal,
)
from zo_sweeps_ray.actor import TrialActor
from zo_sweeps_ray.choice import Agents, Losses, preference
from zo_sweeps_ray.cluster import DEVICE_LABEL
from zo_sweeps_ray.fairness import Claim, Held, base, count, first_served

LOOSE = 1.5  # an actor runs no trial that needs less than its memory divided by this: others may need the rest
SPARE = 1.25  # an actor holds up to this times what its first trial needs, so that trials like it need no new process
SMALL = GIB  # ... and up to so many bytes whatever it needs; a process with its libraries takes about as much
IDLE_SECONDS = 30.0  # an idle actor keeps its base model for so long, on a cluster that others use too
LEFT_SECONDS = 10.0  # time allowed for another sweep to take a slot that is left to it
PASSED_SECONDS = 30.0  # for so long no slot is left to one that took none in that time: it may need more memory
MOST_BUNDLES = 1000  # of a sweep; more nodes are asked for when these are there
NOTHING: Held = (0, 0.0, 0, 0)


@dataclass(eq=False)
class Slot:
    """An actor (None: it has not been made), and the attempt that it runs (None: idle)."""

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
    counted: float = 0.0  # until when its trial's time is in `used` (monotonic)
    began: float = 0.0  # when it was made (monotonic), until its start was measured; then 0
    followers: list[Slot] = field(default_factory=list)  # slots that share its trial's steps, with no `pending`
    outgrown: str = ""  # why its trial's end for lack of memory is no result


class Slots:
    """The slots of one backend, and their nodes. Iteration skips slots that are given up.

    Args:
        target: the RunTrial, as "module:function", importable on every node.
        options: CPUs per slot, slots at a time, and slots that share a trial's steps.
        me: this sweep's name, user and priority among the sweeps of a cluster.
    """

    def __init__(self, target: str, options: Executor, agents: Agents, me: Claim) -> None:
        self._target, self._options, self._agents, self._me = target, options, agents, me
        self._cpus, self._limit = options.cpus_per_trial, options.slots
        self.nodes: list[Node] = []
        # Given up; their nodes take no trial until the actor answers or Ray reports it dead.
        self.silent: list[Slot] = []
        self._slots: list[Slot] = []
        self.others: Sequence[Claim] = ()  # of other drivers on the cluster
        self._taken: dict[str, Held] = {}  # node_id -> what others hold there, by Ray and by the agents' store
        self._claimed: dict[str, Held] = {}  # the same by their claims, sooner
        self._used: defaultdict[str, float] = defaultdict(float)  # CPU-seconds by device profile
        self._start = 0.0  # seconds that the last process took to its first step
        self._left: dict[str, float] = {}  # node_id -> since when a free slot is left to another sweep
        self._passed: dict[str, float] = {}  # driver -> until when none is left to it
        self._bundle: dict[str, float] = {}  # the resources of one slot that an autoscaler may make room for
        self._labels: dict[str, str] = {}  # ... and the labels of its node
        self._wanted: set[str] = set()  # device profiles where a trial found no slot in this round
        self._avoided: dict[str, float] = {}  # nodes that leave, or seem dead: node_id -> end of the ban (monotonic)
        self.losses = Losses()
        self._outgrown: dict[str, int] = {}  # memory key of trials -> memory of the largest GPU that was too small

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def see(self, nodes: list[Node], free: Mapping[str, Mapping[str, float]]) -> None:
        """Replace the nodes, and forget idle slots on other nodes; an empty list (the head is silent) forgets none.

        Args:
            free: node id -> what nobody holds there; of a node that is left out, nobody else holds anything.
        """
        self.nodes, now = nodes, time.monotonic()
        self._taken = {node.node_id: (node.leased, 0.0, 0, 0) for node in nodes if node.leased}
        self._taken |= {
            node.node_id: self._of_others(node, free[node.node_id]) for node in nodes if node.node_id in free
        }
        busy = [slot for slot in self._slots if slot.trial]
        room = {node.node_id for node in nodes if self._fits(Slot(None, node, 0), busy)}
        self._left = {node_id: since for node_id, since in self._left.items() if node_id in room}
        for slot in busy:
            self._count(slot, now)
        self._avoided = {node_id: until for node_id, until in self._avoided.items() if until > now}
        if alive := {node.node_id for node in nodes if not node.is_agent or node.light}:
            self._slots = [slot for slot in self._slots if slot.trial or slot.node.node_id in alive]

    def claim(self, trials: int = 0) -> Claim:
        """Return what this sweep, with so many trials without a result, holds and wants; for the other drivers.

        An autoscaler is asked for as many slots as these trials could use, once one has waited.
        """
        held: defaultdict[str, float] = defaultdict(float)
        places: dict[str, Held] = {}
        for slot in (*self._slots, *self.silent):
            if slot.trial and slot not in self.silent:
                held[slot.node.device] += self._cpus
            if slot.trial or not slot.node.is_agent:
                place = places.get(slot.node.node_id, NOTHING)
                places[slot.node.node_id] = _sum(place, self._held(slot))
        most = min(trials, self._limit or trials, MOST_BUNDLES) if self._bundle else 0
        wants, asks = tuple(sorted(self._wanted)), (most, self._bundle, self._labels)
        return replace(self._me, used=dict(self._used), held=dict(held), wants=wants, places=places, asks=asks)

    def hear(self, others: Sequence[Claim]) -> None:
        """Take the claims of the other drivers into account, and end the idle actors that they wait for.

        Call it when every trial that fits has been started: an actor that is idle then has no use, or is left to them.
        """
        now = time.monotonic()
        self._passed = {driver: until for driver, until in self._passed.items() if until > now}
        self.others = others
        self._claimed = {}
        for other in others:
            for node_id, held in other.places.items():
                self._claimed[node_id] = _sum(self._claimed.get(node_id, NOTHING), held)
        for device in {device for other in others for device in (*other.wants, *other.held)} - self._used.keys():
            if (least := base(others, device, self._me.priority)) is not None:
                self._used[device] = least
        wanted = {device for other in others for device in other.wants}
        for slot in [slot for slot in self._slots if slot.trial is None]:
            if slot.node.device in wanted or now - slot.idle_since > IDLE_SECONDS:
                self.drop(slot)

    def begin_round(self) -> None:
        """Forget which trials found no slot: each is offered again."""
        self._wanted.clear()

    def want(self, trial: Trial) -> None:
        """Note that the trial found no slot in this round."""
        device = trial.needs.device
        config = trial.config
        named = isinstance(config, TrialConfig) and config.device.kind == "cuda" and device not in ("auto", *HOSTS)
        if (device in ("auto", *HOSTS) or named) and "GPU" not in self._bundle:  # no autoscaler adds an edge device
            gpus = {"GPU": float(trial.needs.gpus)} if device == "cuda" or named else {}
            self._bundle, self._labels = {"CPU": self._cpus, **gpus}, {DEVICE_LABEL: device} if named else {}
        if self._limit and sum(slot.trial is not None for slot in self._slots) >= self._limit:
            return
        self._wanted |= {node.device for node in self._able(trial)}

    def in_vain(self) -> list[Slot]:
        """Return the slots whose actors may wait in Ray, where the drivers that share a node have asked for too much.

        Ray would give each of them the next free CPU, whoever's turn that is. A slot that leads others stands for all
        of them, and once it has answered, none is returned: a trial that runs has its own way with absent followers.
        """
        asked = self.claim().places

        def waits(slot: Slot) -> bool:
            other = None if slot.node.is_agent else self._claimed.get(slot.node.node_id)
            return other is not None and _exceeds(slot.node, asked[slot.node.node_id], other)

        led = {id(follower) for slot in self._slots for follower in slot.followers}
        first = [slot for slot in self._slots if slot.trial and not slot.heard and id(slot) not in led]
        return [slot for slot in first if any(map(waits, (slot, *slot.followers)))]

    def holders(self) -> list[str]:
        """Return the drivers that hold slots of the device profiles that this sweep waits for."""
        wants = self.claim().wants
        return [other.driver for other in self.others if any(other.held.get(device) for device in wants)]

    def avoid(self, node: Node, seconds: float) -> None:
        """Place no trial on the node for so many seconds."""
        until = time.monotonic() + seconds
        self._avoided[node.node_id] = max(until, self._avoided.get(node.node_id, until))

    def lose(self, slot: Slot, why: str) -> str:
        """Count a loss and leave its node alone for a while; return what is wrong if the fault is the node's, or ""."""
        assert slot.trial
        node, now = slot.node, time.monotonic()
        self.avoid(node, self.losses.lost(node.node_id, slot.trial.trial_id, why, now))
        if self.losses.is_sick(node.node_id) and self._others_for(slot.trial, {node.node_id}):
            return f"{node.name} {self.losses.text(node.node_id)}"
        return ""

    def outgrew(self, slot: Slot, trial: Trial) -> str:
        """Note that a trial ran out of memory in a slot; return why that is no result, "" if no other GPU is larger."""
        here = slot.node.gpu_bytes if slot.gpus else 0
        larger = [node for node in self._able(trial) if node.gpu_bytes > here]
        if not here or not larger:
            return ""
        self._outgrown[trial.memory_key] = max(here, self._outgrown.get(trial.memory_key, 0))
        most = max(larger, key=lambda node: node.gpu_bytes)
        sizes = bytes_text(here), f"{most.name} has {bytes_text(most.gpu_bytes)}"
        return f"ran out of memory on a GPU of {sizes[0]} of {slot.node.name}; {sizes[1]}"

    def left_alone(self) -> list[str]:
        """Return which nodes get no trial for now because they lost some, and why."""
        texts = {node.name: self.losses.text(node.node_id) for node in self.nodes if node.node_id in self._avoided}
        return [f"{name} {text}" for name, text in texts.items() if text]

    def _others_for(self, trial: Trial, away: Collection[str]) -> set[str]:
        """Return the ids of the nodes besides these that can run a trial, and are not sick."""
        able = {node.node_id for node in self._able(trial)} - set(away)
        return {node_id for node_id in able if not self.losses.is_sick(node_id)}

    def _able(self, trial: Trial) -> list[Node]:
        return [node for node in self.nodes_for(trial) if not refusal(trial.needs, node, self._cpus)]

    def take(self, trial: Trial, attempt: int, kind: str | None, agent: Node | None = None) -> Slot:
        """Take a slot for the trial, an idle one or a new one; of one of `clients`, a new one."""
        slot = self.choose(trial, kind) if agent is None else _on(agent, trial)
        assert slot is not None, "submit without a fit"
        if slot not in self._slots:
            self._make(slot)
        slot.trial, slot.attempt, slot.cursor, slot.warm_key = trial, attempt, 0, trial.warm_key
        slot.counted = time.monotonic()
        slot.outgrown = ""
        return slot

    def hear_of(self, slot: Slot, events: Sequence[Event]) -> None:
        """Note that a slot has answered, with these events of its trial."""
        slot.heard = True
        for follower in slot.followers if events else ():
            follower.heard = True  # the leader runs when all followers are ready
        if slot.began and len(only(Start, events)) < len(events):
            self._start, slot.began = time.monotonic() - slot.began, 0.0

    def free(self, slot: Slot) -> None:
        """Note that a slot's trial has ended."""
        now = time.monotonic()
        self._count(slot, now)
        slot.trial = slot.pending = None
        slot.idle_since = now
        slot.heard = slot.heard and not slot.node.is_agent  # a lease is heard from, where a process was

    def give_up(self, slot: Slot) -> None:
        """Move a slot without a heartbeat to `silent`, where it stays until it answers or Ray reports it dead."""
        self._count(slot, time.monotonic())
        self._slots.remove(slot)
        self.silent.append(slot)

    def drop(self, slot: Slot) -> None:
        """End an actor."""
        import ray

        if slot in self._slots:
            self._count(slot, time.monotonic())
        (self._slots if slot in self._slots else self.silent).remove(slot)
        if slot.node.is_agent and not slot.node.light:
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
        if processes(self._options, trial) > 1 or not self._agents.takes(trial):
            return [node for node in self.nodes if not node.is_agent]
        return self.nodes

    def clients(self, trial: Trial) -> list[Node] | None:
        """Return the agents that keep the rows of a trial's clients, in their order, each with a free slot.

        [] if none of them keeps any: then they are processes of nodes. None: wait, for not all of them are free.
        """
        rows = trial.shared_steps.rows if trial.shared_steps else ()
        able = [node for node in self.nodes if node.is_agent and not refusal(trial.needs, node, self._cpus)]
        if processes(self._options, trial) == 1 or not any(node.rows & {*rows} for node in able):
            return []
        busy, found = [slot for slot in self._slots if slot.trial], list[Node]()
        if self._limit and len(busy) + 1 + len(rows) > self._limit:
            return None
        able = [node for node in able if node.node_id not in self._avoided]
        for row in rows:
            slots = [*busy, *(_on(node, trial) for node in found)]
            here = (node for node in able if row in node.rows and self._fits(_on(node, trial), slots))
            found += list(here)[:1]
        return found if len(found) == len(rows) else None

    def kind(self, trial: Trial) -> str | None:
        """Return a device profile with free slots for all of a trial's workers; "" if none has, None: no restriction.

        All workers of a trial share one profile, because losses round differently on another. Clients on agents do not.
        """
        count, agents = processes(self._options, trial), self.clients(trial)
        if agents is None:
            return ""
        if count == 1 or agents:
            return None
        nodes = sorted(self.nodes_for(trial), key=lambda node: preference(trial.needs, node))
        kinds = dict.fromkeys(node.device for node in nodes)
        return next((kind for kind in kinds if self._takes_all(trial, kind, count)), "")

    def choose(self, trial: Trial, kind: str | None = None) -> Slot | None:
        """Return the idle slot to use, warm if possible, or one to be made; None: wait.

        `kind`: only nodes of that device profile.
        """
        nodes = [node for node in self._able(trial) if kind is None or node.device == kind]
        if least := self._outgrown.get(trial.memory_key):
            nodes = [node for node in nodes if node.gpu_bytes > least] or nodes
        busy = [slot for slot in self._slots if slot.trial]  # idle actors make way for a new one
        away = {slot.node.node_id for slot in self.silent} | self._avoided.keys()
        if processes(self._options, trial) == 1:
            away |= {slot.node.node_id for slot in busy if self.losses.is_sick(slot.node.node_id)}
            lost = self.losses.nodes_of(trial.trial_id)
            away |= lost if lost and self._others_for(trial, lost) else set()
        nodes.sort(key=lambda node: preference(trial.needs, node))
        new = {node.node_id: _on(node, trial) for node in nodes if node.node_id not in away}
        # An agent's slot may be another driver's as soon as the lease has ended.
        free = {node_id: one for node_id, one in new.items() if not one.node.is_agent or self._fits(one, busy)}
        idle = [slot for slot in self._slots if slot.trial is None and slot.node.node_id in free]
        idle = [slot for slot in idle if _suits(slot, free[slot.node.node_id])]
        for device in {slot.node.device for slot in idle}:
            if self._first_served(device, new.values(), busy, self._start):
                idle = [slot for slot in idle if slot.node.device != device]
        if idle:
            warm = next((slot for slot in idle if slot.warm_key == trial.warm_key), None)
            return warm or min(idle, key=lambda slot: preference(trial.needs, slot.node))
        for one in new.values():
            if self._has_room(one, busy):
                first = self._first_served(one.node.device, new.values(), busy)
                if not first or not self._leaves(one.node, first):
                    return one
        return None

    def _first_served(
        self, device: str, new: Iterable[Slot], busy: Sequence[Slot], start: float | None = None
    ) -> list[Claim]:
        """Return the sweeps that a device profile's free slots are for; `new`: the trial's, if made on each node."""
        others = [other for other in self.others if other.driver not in self._passed]
        first = first_served(self.claim(), others, device, start=start) if others else []
        if not first or any(other.priority > self._me.priority for other in first):  # it takes as many as it can
            return first
        slots = list(busy)
        for one in new:
            while one.node.device == device and self._fits(one, slots):
                if len(slots) - len(busy) == len(first):
                    return []
                slots.append(one)
        return first

    def _leaves(self, node: Node, first: Sequence[Claim]) -> bool:
        """Return whether a free slot is left to other sweeps: for a while only, as they may have no use for it."""
        now = time.monotonic()
        if now - self._left.setdefault(node.node_id, now) < LEFT_SECONDS:
            return True
        self._passed |= {other.driver: now + PASSED_SECONDS for other in first}
        return False

    def _count(self, slot: Slot, now: float) -> None:
        """Add to `used` what a slot's trial has had since the last call."""
        if slot.trial and slot.heard:
            device = slot.node.device
            self._used[device] += (now - slot.counted) * self._cpus * count(self._me, self.others, device)
        slot.counted = now

    def _takes_all(self, trial: Trial, kind: str, count: int) -> bool:
        """Return whether `count` slots are free: take them, as if the new ones were made, and give them back."""
        before, taken = self._slots, list[Slot]()
        try:
            while len(taken) < count and (slot := self.choose(trial, kind)):
                self._slots = list(dict.fromkeys((*self._slots, slot)))
                slot.trial = trial
                taken.append(slot)
            return len(taken) == count
        finally:
            for slot in taken:
                slot.trial = None
            self._slots = before

    def _of_others(self, node: Node, free: Mapping[str, float]) -> Held:
        """Return what is neither free on a node of Ray's nor held by this sweep."""
        here = [slot for slot in (*self._slots, *self.silent) if slot.node.node_id == node.node_id]
        here = [slot for slot in here if slot.heard]  # before, what it holds may not be known to Ray yet
        return (
            0,
            max(0.0, node.cpus - free.get("CPU", 0.0) - len(here) * self._cpus),
            max(0, int(node.gpus - free.get("GPU", 0.0)) - sum(slot.gpus for slot in here)),
            max(0, node.memory_bytes - int(free.get("memory", 0.0)) - sum(slot.memory_bytes for slot in here)),
        )

    def _has_room(self, new: Slot, slots: Sequence[Slot]) -> bool:
        """Return whether an actor may be made in addition to `slots`."""
        return (not self._limit or len(slots) < self._limit) and self._fits(new, slots)

    def _fits(self, new: Slot, slots: Sequence[Slot]) -> bool:
        """Return whether an actor fits on its node in addition to `slots` and to what others hold there."""
        here = [self._held(slot) for slot in slots if slot.node.node_id == new.node.node_id]
        return not _exceeds(new.node, self._held(new), self._held_by_others(new.node), *here)

    def _held(self, slot: Slot) -> Held:
        return (1, self._cpus, slot.gpus, slot.memory_bytes)

    def _held_by_others(self, node: Node) -> Held:
        """Return what others hold on `node`, by Ray or by what they say, whichever is more."""
        taken, claimed = self._taken.get(node.node_id, NOTHING), self._claimed.get(node.node_id, NOTHING)
        return tuple(map(max, taken, claimed))

    def _spare(self, node: Node, memory: int) -> int:
        """Return the bytes that a new actor holds beyond `memory`: none that a further actor like it would need."""
        if not memory:
            return 0
        here = [slot.memory_bytes for slot in self._slots if slot.node.node_id == node.node_id]
        free = node.memory_bytes - sum(here) - self._held_by_others(node)[-1]
        actors = min(node.cpus // self._cpus, node.memory_bytes // memory)
        return max(0, int(min(max(SPARE * memory, SMALL), node.memory_bytes / actors, free)) - memory)

    def _make(self, new: Slot) -> None:
        """Start an actor, in place of idle ones if need be."""
        node = new.node
        while not self._has_room(new, self._slots):
            idle = [slot for slot in self._slots if slot.trial is None]
            self.drop(min(idle, key=lambda slot: slot.node.node_id != node.node_id))
        new.memory_bytes += self._spare(node, new.memory_bytes)
        new.actor = self._agents.slot(node, self._cpus, self._target) if node.is_agent else self._start_actor(new)
        new.began = time.monotonic()
        self._slots.append(new)

    def _start_actor(self, new: Slot) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return (
            ray.remote(concurrency_groups={"ctl": 2})(TrialActor)  # type: ignore[call-overload]  # not in Ray's types
            .options(
                num_cpus=self._cpus,
                num_gpus=new.gpus,
                memory=new.memory_bytes,
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(new.node.node_id, soft=False),
            )
            .remote(self._target, self._cpus, {"node": new.node.name, "profile": new.node.device})
        )


def _on(node: Node, trial: Trial) -> Slot:
    """Return a slot for a trial on a node, to be made."""
    return Slot(None, node, gpus_needed(trial.needs, node), memory_bytes=main_memory(trial.needs, node))


def _sum(*each: Held) -> Held:
    return tuple(map(sum, zip(*each, strict=True)))


def _exceeds(node: Node, *each: Held) -> bool:
    """Return whether these together hold more than a node has."""
    lent = math.inf if node.slots is None else node.slots, node.cpus, node.gpus, node.memory_bytes
    return any(held > most for held, most in zip(_sum(*each), lent, strict=True))


def _suits(slot: Slot, new: Slot) -> bool:
    """Return whether an idle actor has the GPUs and the memory that a new one would, and not much more memory."""
    return slot.gpus == new.gpus and new.memory_bytes <= slot.memory_bytes <= LOOSE * max(new.memory_bytes, SMALL)
