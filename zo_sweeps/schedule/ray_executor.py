"""Trials in Ray actors: warm processes that outlive a trial, on this machine or on a standing cluster.

Actors and not tasks: an unreachable node fails an actor's call in a minute, a task's in seven. An actor is pinned to a
node that `placement` chose, so that Ray never holds a trial back in silence. Every running attempt has a call of
`drain` under way, which its actor answers twice a second: that is its heartbeat.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zo_sweeps.schedule.executors import (
    COLD,
    FLUSH_SECONDS,
    NO_SLOT,
    RUN_TRIAL,
    WARM,
    Deliver,
    Finished,
    Lost,
    Progress,
)
from zo_sweeps.schedule.placement import HOSTS, Node, gpus_needed, preference, reason, refusal, takes_main_memory
from zo_sweeps.schedule.ray_actor import TrialActor
from zo_sweeps.schedule.ray_cluster import NODE_LOST, Connection, why_lost
from zo_sweeps.schedule.ray_peers import RayPeer
from zo_sweeps.schedule.sharing import ALONE, Workers, no_room, of_mask
from zo_sweeps.trial import Event, Outcome, Sharing, Trial, TrialState

REFRESH_SECONDS = 1.0  # how long a node that joined may go unnoticed
SILENT_SECONDS = 20.0  # without a heartbeat; Ray itself takes 64
LEAVING_SECONDS = 60.0  # a node that handed a trial back is given no other for so long, if it stays
ANSWER_SECONDS = 2.0  # that a process which works may take to say so
DEAD_SECONDS = 20.0  # so long Ray may take to see that a node died whose actor is out of reach


@dataclass
class _Slot:
    """An actor, and the attempt that it runs (None: idle)."""

    actor: Any
    node: Node
    gpus: int
    warm_key: str = ""
    trial: Trial | None = None
    attempt: int = 0
    cursor: int = 0  # events received and delivered
    pending: Any = None  # the reference of the outstanding `drain`
    asked: float = 0.0  # when that was called (monotonic)
    heard: bool = False  # it has answered once; a new one may still be starting
    memory_bytes: int = 0  # what it holds: its trial's, or still its last one's
    followers: list[_Slot] = field(default_factory=list)  # those that share its trial's steps, with no `pending`


class RayExecutor:
    """See `Executor` for the methods.

    Args:
        state_dir: keeps the token of local clusters.
        address: "host:port" of a standing cluster; None: one of our own on this machine.
        cpus_per_trial: CPUs of a slot, and torch threads in it.
        slots: trials at a time; None: as many as CPUs (and GPUs) allow.
        target: the RunTrial, as "module:function", importable on every node.
        workers: slots that share a trial's steps.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        address: str | None = None,
        cpus_per_trial: int = 1,
        slots: int | None = None,
        target: str = RUN_TRIAL,
        workers: Workers = ALONE,
    ) -> None:
        self._connection, self._target, self._workers = Connection(state_dir, address), target, workers
        self._cpus, self._limit = cpus_per_trial, slots
        self.grows = address is not None
        self._slots: list[_Slot] = []
        self._silent: list[_Slot] = []  # given up; their nodes take no trial until Ray or they themselves speak
        self._avoided: dict[str, float] = {}  # nodes that leave, or seem dead: node_id -> until when (monotonic)
        self._nodes: list[Node] = []
        self._refreshed = 0.0
        self._polled = 0.0
        self._stopping = self._told = False

    def start(self, deliver: Deliver, trials: int) -> None:
        self._deliver = deliver
        self._stopping = self._told = False
        try:
            if self.grows:
                self._connection.join()
            else:
                slots = min(self._limit or max(1, _cpu_count() // self._cpus), trials * self._workers.count)
                self._connection.start_local(slots * self._cpus)
            self._refresh()
        except BaseException:
            self.shutdown()
            raise

    def refusal(self, trial: Trial) -> str:
        count = self._workers.of_trial(trial)
        few = no_room(trial, count, self._nodes, self._cpus, self._limit) if count > 1 else ""
        return reason(trial.needs, self._nodes, self._cpus) or few

    def fit(self, trial: Trial) -> int:
        slot, node = self._choose(trial, self._kind(trial))
        if slot is None:
            return COLD if node else NO_SLOT
        return WARM if slot.warm_key == trial.warm_key else COLD

    def submit(self, trial: Trial, journal: list[Event], attempt: int) -> str:
        kind = self._kind(trial)
        slot = self._take(trial, attempt, kind)
        slot.followers = [self._take(trial, attempt, kind) for _ in range(self._workers.of_trial(trial) - 1)]
        slot.actor.run.remote(trial.to_json(), journal, attempt, self._sharing(slot, journal))
        self._drain(slot)
        return slot.node.name

    def poll(self, timeout: float) -> None:
        import ray

        began = time.monotonic()
        if began - self._polled > SILENT_SECONDS / 4:  # it is we who were away
            for slot in self._slots:
                slot.asked = began
        busy = {slot.pending: slot for slot in (*self._slots, *self._silent) if slot.pending is not None}
        if self._stopping and not self._told:
            self._told = True
            for slot in self._slots:
                if slot.trial:
                    slot.actor.stop.options(concurrency_group="ctl").remote(slot.trial.trial_id, slot.attempt)
        if busy:
            ready, _ = ray.wait(list(busy), num_returns=1, timeout=timeout)
            if ready:
                ready, _ = ray.wait(list(busy), num_returns=len(busy), timeout=0)
            for reference in ready:
                self._report(busy[reference], reference)
            self._give_up_on_the_silent()
        elif self.grows:
            time.sleep(timeout)
        if self.grows and time.monotonic() - self._refreshed > REFRESH_SECONDS:
            self._refresh()
        self._polled = time.monotonic()

    def cancel_all(self) -> None:
        self._stopping = True

    def shutdown(self) -> None:
        self._slots.clear()
        self._silent.clear()
        self._connection.close()

    def describe(self) -> str:
        address = self._connection.address
        where = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
        devices = Counter(node.device for node in self._nodes)
        nodes = ", ".join(f"{n} {device} node{'s' * (n != 1)}" for device, n in sorted(devices.items()))
        cpus = sum(node.cpus for node in self._nodes)
        return f"{where} ({nodes}, {cpus:g} CPUs, {self._cpus} a trial)"

    # --- nodes and slots

    def _refresh(self) -> None:
        self._nodes = self._connection.nodes()
        self._refreshed = now = time.monotonic()
        self._avoided = {node_id: until for node_id, until in self._avoided.items() if until > now}
        runs: dict[str, list[str]] = {}
        for slot in self._slots:
            if slot.trial:
                runs.setdefault(slot.node.node_id, []).append(slot.trial.label or slot.trial.trial_id)
        self._connection.publish(runs)
        if alive := {node.node_id for node in self._nodes}:
            self._slots = [slot for slot in self._slots if slot.trial or slot.node.node_id in alive]

    def _take(self, trial: Trial, attempt: int, kind: str | None) -> _Slot:
        """A slot for the trial, old or new."""
        slot, node = self._choose(trial, kind)
        if slot is None:
            assert node is not None, "submit without a fit"
            slot = self._new_slot(node, gpus_needed(trial.needs, node))
        slot.trial, slot.attempt, slot.cursor, slot.warm_key = trial, attempt, 0, trial.warm_key
        slot.memory_bytes = trial.needs.memory_bytes
        self._free_memory(slot)
        return slot

    def _kind(self, trial: Trial) -> str | None:
        """The device profile of which all of a trial's workers find a slot now; "" for none, None: any does.

        Of one kind, because on another the losses are rounded in another way.
        """
        count = self._workers.of_trial(trial)
        if count == 1:
            return None
        for kind in dict.fromkeys(n.device for n in sorted(self._nodes, key=lambda n: preference(trial.needs, n))):
            if self._has_room(trial, kind, count):
                return kind
        return ""

    def _has_room(self, trial: Trial, kind: str, count: int) -> bool:
        """Takes and gives back `count` slots, those that would be new only in name."""
        before, taken = self._slots, []
        self._slots = list(before)
        try:
            for _ in range(count):
                slot, node = self._choose(trial, kind)
                if slot is None:
                    if node is None:
                        return False
                    slot = _Slot(None, node, gpus_needed(trial.needs, node))
                    self._slots.append(slot)
                taken.append((slot, slot.memory_bytes))
                slot.trial, slot.memory_bytes = trial, trial.needs.memory_bytes
            return True
        finally:
            for slot, held in taken:
                slot.trial, slot.memory_bytes = None, held
            self._slots = before

    def _sharing(self, slot: _Slot, journal: list[Event]) -> Sharing | None:
        """Calls a trial's followers together."""
        if not slot.followers:
            return None
        assert slot.trial
        entry, mask = slot.trial.to_json(), of_mask(journal)
        peers = [RayPeer(f.actor, f.actor.follow.remote(entry, mask), f.node.name) for f in slot.followers]
        names = [follower.node.name for follower in slot.followers]
        return Sharing(peers, names, self._workers.on_lost == "drop", self._workers.patience)

    def _release(self, slot: _Slot) -> None:
        """Gives a trial's followers back; those that do not answer at once are ended."""
        import ray

        followers, slot.followers = slot.followers, []
        calls = {}
        for follower in followers:
            follower.trial = None
            follower.actor.leave.remote()  # after what it still computes
            calls[follower.actor.stop.options(concurrency_group="ctl").remote("", 0)] = follower
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_SECONDS) if calls else ([], [])
        for call in ready:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(call)
                del calls[call]
        for follower in calls.values():
            self._drop(follower)

    def _choose(self, trial: Trial, kind: str | None = None) -> tuple[_Slot | None, Node | None]:
        """The slot to use, idle and warm if possible; (None, node): a new one there; (None, None): wait.

        `kind`: on nodes of that device profile only.
        """
        nodes = [node for node in self._nodes if not refusal(trial.needs, node, self._cpus)]
        nodes = [node for node in nodes if kind is None or node.device == kind]
        away = {slot.node.node_id for slot in self._silent} | self._avoided.keys()
        nodes = [node for node in nodes if node.node_id not in away and self._memory_left(trial, node)]
        nodes.sort(key=lambda node: preference(trial.needs, node))
        homes = {node.node_id: gpus_needed(trial.needs, node) for node in nodes}
        idle = [slot for slot in self._slots if slot.trial is None and homes.get(slot.node.node_id) == slot.gpus]
        if idle:
            warm = next((slot for slot in idle if slot.warm_key == trial.warm_key), None)
            return warm or min(idle, key=lambda slot: preference(trial.needs, slot.node)), None
        busy = [slot for slot in self._slots if slot.trial]  # idle actors make way for a new one
        return None, next((node for node in nodes if self._room(node, homes[node.node_id], busy)), None)

    def _memory_left(self, trial: Trial, node: Node) -> bool:
        if not takes_main_memory(trial.needs, node):
            return True
        there = [slot for slot in self._slots if slot.trial and slot.node.node_id == node.node_id]
        return sum(_main_memory(slot) for slot in there) + trial.needs.memory_bytes <= node.memory_bytes

    def _room(self, node: Node, gpus: int, slots: Sequence[_Slot]) -> bool:
        """Whether one more actor goes on `node` beside `slots`."""
        here = [slot for slot in slots if slot.node.node_id == node.node_id]
        return (
            (not self._limit or len(slots) < self._limit)
            and (len(here) + 1) * self._cpus <= node.cpus
            and sum(slot.gpus for slot in here) + gpus <= node.gpus
        )

    def _new_slot(self, node: Node, gpus: int) -> _Slot:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        while not self._room(node, gpus, self._slots):
            idle = [slot for slot in self._slots if slot.trial is None]
            self._drop(min(idle, key=lambda slot: slot.node.node_id != node.node_id))
        actor = (
            ray.remote(concurrency_groups={"ctl": 2})(TrialActor)
            .options(
                num_cpus=self._cpus,
                num_gpus=gpus,
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            )
            .remote(self._target, self._cpus, {"node": node.name, "profile": node.device})
        )
        slot = _Slot(actor, node, gpus)
        self._slots.append(slot)
        return slot

    def _free_memory(self, slot: _Slot) -> None:
        """Ends idle actors beside `slot` until what is held there is no more than the node lends."""
        here = [other for other in self._slots if other.node.node_id == slot.node.node_id]
        idle = [other for other in here if other.trial is None]
        while idle and sum(map(_main_memory, here)) > slot.node.memory_bytes:
            here.remove(idle[-1])
            self._drop(idle.pop())

    def _drop(self, slot: _Slot) -> None:
        import ray

        (self._slots if slot in self._slots else self._silent).remove(slot)
        ray.kill(slot.actor)  # also when it seemed dead: one that is only out of reach must not go on

    # --- what the actors say

    def _drain(self, slot: _Slot) -> None:
        assert slot.trial
        drain = slot.actor.drain.options(concurrency_group="ctl")
        slot.pending = drain.remote(slot.trial.trial_id, slot.attempt, slot.cursor, FLUSH_SECONDS)
        slot.asked = time.monotonic()

    def _report(self, slot: _Slot, reference: Any) -> None:
        import ray

        assert slot.trial
        trial_id = slot.trial.trial_id
        try:
            events, outcome, leaving = ray.get(reference)
        except ray.exceptions.RayError as error:
            given_up = slot in self._silent
            self._release(slot)
            self._drop(slot)
            self._refresh()
            if not given_up:
                if (why := why_lost(error)) == NODE_LOST:
                    self._avoided[slot.node.node_id] = time.monotonic() + DEAD_SECONDS
                self._deliver(Lost(trial_id, slot.attempt, why, slot.node.name))
            return
        if slot in self._silent:  # back, too late
            self._drop(slot)
            return
        slot.heard = True
        if events:
            self._deliver(Progress(trial_id, slot.attempt, events))
            slot.cursor += len(events)
        if outcome is None:
            self._drain(slot)
            return
        slot.trial = slot.pending = None
        self._release(slot)
        ended = Outcome.from_json(outcome)
        if leaving:
            self._drop(slot)
            self._avoided[slot.node.node_id] = time.monotonic() + LEAVING_SECONDS
            if ended.state is TrialState.CANCELLED and not self._stopping:
                why = "handed back: its node was asked to stop"
                self._deliver(Lost(trial_id, slot.attempt, why, slot.node.name, blameless=True))
                return
        self._deliver(Finished(trial_id, slot.attempt, ended))

    def _give_up_on_the_silent(self) -> None:
        now = time.monotonic()
        waiting = [slot for slot in self._slots if slot.pending is not None and slot.heard]
        for slot in [slot for slot in waiting if now - slot.asked > SILENT_SECONDS]:
            assert slot.trial
            self._release(slot)
            self._slots.remove(slot)
            self._silent.append(slot)
            self._deliver(Lost(slot.trial.trial_id, slot.attempt, "its node does not answer", slot.node.name))


def _main_memory(slot: _Slot) -> int:
    """What an actor holds of its node's main memory: with a GPU of its own, next to nothing."""
    return 0 if slot.gpus and slot.node.device in HOSTS else slot.memory_bytes


def _cpu_count() -> int:
    """CPUs that this process may use, which is what counts in a container."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
