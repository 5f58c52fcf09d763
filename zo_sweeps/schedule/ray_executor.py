"""Trials in Ray actors: warm processes that outlive a trial, on this machine or on a standing cluster.

The one place that imports Ray. Actors and not tasks: an unreachable node fails an actor's call in a minute, a task's
in seven. An actor is pinned to a node that `placement` chose, so that Ray never holds a trial back in silence.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zo_sweeps.errors import UserError
from zo_sweeps.schedule import cluster
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
from zo_sweeps.schedule.gcs import Head
from zo_sweeps.schedule.placement import Node, gpus_needed, reason, refusal, takes_main_memory
from zo_sweeps.schedule.ray_actor import TrialActor
from zo_sweeps.trial import Event, Outcome, Trial

DEVICE_LABEL = "zo.device"
OBJECT_STORE_BYTES = 100 * 2**20  # we pass journals of kilobytes; the default would take 30 % of the memory
REFRESH_SECONDS = 5.0
CONNECT_SECONDS = 15


@dataclass
class _Slot:
    """An actor, and the attempt that it runs (None: idle)."""

    actor: Any
    node: Node
    gpus: int
    warm_key: str
    trial: Trial | None = None
    attempt: int = 0
    cursor: int = 0  # events received and delivered
    pending: Any = None  # the reference of the outstanding `drain`


class RayExecutor:
    """See `Executor` for the methods.

    Args:
        state_dir: keeps the token of local clusters.
        address: "host:port" of a standing cluster; None: one of our own on this machine.
        cpus_per_trial: CPUs of a slot, and torch threads in it.
        slots: trials at a time; None: as many as CPUs (and GPUs) allow.
        target: the RunTrial, as "module:function", importable on every node.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        address: str | None = None,
        cpus_per_trial: int = 1,
        slots: int | None = None,
        target: str = RUN_TRIAL,
    ) -> None:
        self._state_dir, self._address, self._target = state_dir, address, target
        self._cpus, self._limit = cpus_per_trial, slots
        self._slots: list[_Slot] = []
        self._nodes: list[Node] = []
        self._refreshed = 0.0
        self._stopping = self._told = False
        self._started = contextlib.ExitStack()

    def start(self, deliver: Deliver, trials: int) -> None:
        self._deliver = deliver
        self._stopping = self._told = False
        try:
            if self._address:
                self._join(self._address)
            else:
                self._start_local(trials)
            self._refresh()
        except BaseException:
            self.shutdown()
            raise

    def refusal(self, trial: Trial) -> str:
        return reason(trial.needs, self._nodes, self._cpus)

    def fit(self, trial: Trial) -> int:
        slot, node = self._choose(trial)
        if slot is None:
            return COLD if node else NO_SLOT
        return WARM if slot.warm_key == trial.warm_key else COLD

    def submit(self, trial: Trial, journal: list[Event], attempt: int) -> str:
        slot, node = self._choose(trial)
        if slot is None:
            assert node is not None, "submit without a fit"
            slot = self._new_slot(node, gpus_needed(trial.needs, node))
        slot.trial, slot.attempt, slot.cursor, slot.warm_key = trial, attempt, 0, trial.warm_key
        slot.actor.run.remote(trial.to_json(), journal, attempt)
        self._drain(slot)
        return slot.node.name

    def poll(self, timeout: float) -> None:
        import ray

        busy = {slot.pending: slot for slot in self._slots if slot.trial}
        if not busy:
            return
        if self._stopping and not self._told:
            self._told = True
            for slot in busy.values():
                slot.actor.stop.options(concurrency_group="ctl").remote(slot.trial.trial_id, slot.attempt)  # type: ignore[union-attr]
        ready, _ = ray.wait(list(busy), num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait(list(busy), num_returns=len(busy), timeout=0)
        for reference in ready:
            self._report(busy[reference], reference)
        if self._address and time.monotonic() - self._refreshed > REFRESH_SECONDS:
            self._refresh()

    def cancel_all(self) -> None:
        self._stopping = True

    def shutdown(self) -> None:
        import ray

        self._slots.clear()
        ray.shutdown()
        self._started.close()

    def describe(self) -> str:
        where = f"the Ray cluster at {self._address}" if self._address else "a Ray cluster on this machine"
        devices = Counter(node.device for node in self._nodes)
        nodes = ", ".join(f"{n} {device} node{'s' * (n != 1)}" for device, n in sorted(devices.items()))
        cpus = sum(node.cpus for node in self._nodes)
        return f"{where} ({nodes}, {cpus:g} CPUs, {self._cpus} a trial)"

    # --- Ray's start and end

    def _start_local(self, trials: int) -> None:
        slots = min(self._limit or max(1, _cpu_count() // self._cpus), trials)
        token = cluster.private_token(self._state_dir)
        folder = cluster.short_folder(self._state_dir)
        self._started.callback(shutil.rmtree, folder, ignore_errors=True)
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token.resolve()), "RAY_AUTH_TOKEN": None}
        self._started.enter_context(cluster.environment({**cluster.QUIET, **auth}))
        self._init(
            address="local",
            num_cpus=slots * self._cpus,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=str(folder),
        )

    def _join(self, address: str) -> None:
        auth = cluster.joining_environment(self._state_dir, address)
        self._started.enter_context(cluster.environment({**cluster.QUIET, **auth}))
        try:
            Head(address, auth).must_have_this_machine()
            self._init(address=address)
        except UserError:
            raise
        except Exception as error:
            line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"cannot join the Ray cluster at {address} ({line})",
                where="cluster.address",
                fix="this machine must be a node of it, and RAY_AUTH_TOKEN_PATH name the file with the head's token",
            ) from error

    def _init(self, **options: Any) -> None:
        import ray

        cluster.forget_token()
        self._started.enter_context(_muted())
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)

    def _refresh(self) -> None:
        import ray

        self._nodes = [_node(description) for description in ray.nodes() if description["Alive"]]
        self._refreshed = time.monotonic()
        if self._address:
            busy = [slot for slot in self._slots if slot.trial]
            ids = {slot.node.node_id for slot in busy}
            cluster.publish_runs(
                {i: [slot.trial.label or slot.trial.trial_id for slot in busy if slot.node.node_id == i] for i in ids}  # type: ignore[union-attr]
            )

    # --- slots

    def _choose(self, trial: Trial) -> tuple[_Slot | None, Node | None]:
        """The slot to use, idle and warm if possible; (None, node): a new one there; (None, None): wait."""
        nodes = [node for node in self._nodes if not refusal(trial.needs, node, self._cpus)]
        nodes = [node for node in nodes if self._memory_left(trial, node)]
        homes = {node.node_id: gpus_needed(trial.needs, node) for node in nodes}
        idle = [slot for slot in self._slots if slot.trial is None and homes.get(slot.node.node_id) == slot.gpus]
        if idle:
            return next((slot for slot in idle if slot.warm_key == trial.warm_key), idle[0]), None
        busy = [slot for slot in self._slots if slot.trial]  # idle actors make way for a new one
        return None, next((node for node in nodes if self._room(node, homes[node.node_id], busy)), None)

    def _memory_left(self, trial: Trial, node: Node) -> bool:
        if not takes_main_memory(trial.needs, node):
            return True
        there = [slot.trial for slot in self._slots if slot.trial and slot.node.node_id == node.node_id]
        return sum(other.needs.memory_bytes for other in (*there, trial)) <= node.memory_bytes

    def _room(self, node: Node, gpus: int, slots: list[_Slot]) -> bool:
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
            .remote(self._target, self._cpus)
        )
        slot = _Slot(actor, node, gpus, "")
        self._slots.append(slot)
        return slot

    def _drop(self, slot: _Slot) -> None:
        import ray

        self._slots.remove(slot)
        ray.kill(slot.actor)  # also when it seemed dead: one that is only out of reach must not go on

    # --- what the actors say

    def _drain(self, slot: _Slot) -> None:
        assert slot.trial
        drain = slot.actor.drain.options(concurrency_group="ctl")
        slot.pending = drain.remote(slot.trial.trial_id, slot.attempt, slot.cursor, FLUSH_SECONDS)

    def _report(self, slot: _Slot, reference: Any) -> None:
        import ray

        assert slot.trial
        trial_id = slot.trial.trial_id
        try:
            events, outcome = ray.get(reference)
        except ray.exceptions.RayError as error:
            self._drop(slot)
            self._refresh()
            self._deliver(Lost(trial_id, slot.attempt, _why_lost(error), slot.node.name))
            return
        if events:
            self._deliver(Progress(trial_id, slot.attempt, events))
            slot.cursor += len(events)
        if outcome is None:
            self._drain(slot)
            return
        slot.trial = slot.pending = None
        self._deliver(Finished(trial_id, slot.attempt, Outcome.from_json(outcome)))


def _cpu_count() -> int:
    """CPUs that this process may use, which is what counts in a container."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _node(description: dict[str, Any]) -> Node:
    """One entry of `ray.nodes()` in our terms."""
    resources, labels = description["Resources"], description.get("Labels", {})
    gpus = resources.get("GPU", 0.0)
    return Node(
        node_id=description["NodeID"],
        name=description["NodeManagerHostname"],
        device=labels.get(DEVICE_LABEL, "cuda" if gpus else "cpu"),
        cpus=resources.get("CPU", 0.0),
        gpus=gpus,
        memory_bytes=int(resources.get("memory", 0)),
    )


def _why_lost(error: Exception) -> str:
    """One line on the death of an actor, without its ids."""
    kind = type(error).__name__
    if kind == "OutOfMemoryError" or "low on memory" in str(error):
        return "its process was killed because the node ran low on memory"
    if kind in ("ActorUnavailableError", "NodeDiedError", "ActorUnschedulableError") or "node has died" in str(error):
        return "its node is gone or out of reach"
    return "its process ended unexpectedly (killed, or crashed)"


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """Keeps Ray from printing a paragraph on each death into our progress view; the ledger says what happened."""
    worker: Any = importlib.import_module("ray._private.worker")
    printer = getattr(worker, "print_to_stdstream", None)
    worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        worker.print_to_stdstream = printer
