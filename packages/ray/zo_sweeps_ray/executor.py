"""Trials in Ray actors: warm processes that outlive a trial, on this machine or on a running cluster.

Actors and not tasks: an unreachable node fails an actor's call in a minute, a task's in seven. An actor is pinned to a
node that `slots` chose, so that Ray never silently holds a trial back. Every running attempt has a call of `drain`
in flight, which its actor answers twice per second: that is its heartbeat.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zo_sweeps.core.events import End, Event
from zo_sweeps.core.trial import Outcome, Sharing, Trial, TrialState
from zo_sweeps.devices.probe import cores
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.executor import Executor
from zo_sweeps.schedule.backend import COLD, FLUSH_SECONDS, NO_SLOT, RUN_TRIAL, WARM, Deliver, Finished, Lost, Progress
from zo_sweeps.schedule.placement import Node, of_weights, processes
from zo_sweeps_ray import private
from zo_sweeps_ray.choice import no_room, reason
from zo_sweeps_ray.connection import NODE_LOST, Connection, why_lost
from zo_sweeps_ray.fairness import Claim
from zo_sweeps_ray.slots import Slot, Slots


class RayPeer:
    """A `zo_sweeps.engine.peers.Peer` in a Ray actor.

    Args:
        joined: the reference of the actor's call of `follow`: its result is the first answer.
    """

    def __init__(self, actor: Any, joined: Any, name: str) -> None:
        self._actor, self._pending, self._name = actor, joined, name

    def ask(self, message: bytes) -> None:
        self._pending = self._actor.answer.remote(message)

    def answer(self, timeout: float) -> bytes | None:
        import ray

        from zo_sweeps.engine.peers import PeerLostError

        ready, _ = ray.wait([self._pending], timeout=timeout)
        if not ready:
            return None
        try:
            return bytes(ray.get(self._pending))
        except ray.exceptions.RayTaskError as error:
            line = str(error).strip().splitlines()[-1]
            raise PeerLostError(f"the peer on {self._name} failed: {line}") from error
        except ray.exceptions.RayError as error:
            raise PeerLostError(f"the peer on {self._name} is lost: {why_lost(error)}") from error


REFRESH_SECONDS = 1.0  # how long a node that joined may go unnoticed
TURN_SECONDS = 0.25  # the same for what another sweep has or wants, once there is one
FIRST_SECONDS = 0.5  # from joining to the first trial: sweeps that begin together see each other's claims
SILENT_SECONDS = 20.0  # without a heartbeat, before an attempt is lost; Ray itself takes 64
LEAVING_SECONDS = 60.0  # for so long a node that handed a trial back gets no other, if it stays
REFUSED_SECONDS = 2.5  # ... and an agent: the note on agents, which is younger, shows whether it left or has no slot
ANSWER_SECONDS = 2.0  # time allowed for a healthy process to answer
DEAD_SECONDS = 20.0  # time that Ray may take to notice the death of a node whose actor is unreachable


class RayBackend:
    """The backend on a Ray cluster; see `Backend` for the methods.

    Args:
        state_dir: keeps the token of local clusters.
        address: "host:port" of a running cluster; None: a new one on this machine.
        options: CPUs per trial, which are also torch's threads; slots; workers.
        target: the RunTrial, as "module:function", importable on every node.
        priority: among the sweeps of the cluster; the highest is served first.
    """

    def __init__(
        self, state_dir: Path, *, address: str | None = None, options: Executor | None = None, target: str = RUN_TRIAL,
        priority: int = 0,
    ) -> None:  # fmt: skip
        self._connection, self._options = Connection(state_dir, address), options or Executor()
        self._cpus = self._options.cpus_per_trial
        self.grows = address is not None
        me = Claim(self._connection.driver, user=self._connection.user, priority=priority)
        self._slots = Slots(target, self._options, self._connection.agents, me)
        self._joined = self._refreshed = self._polled = 0.0  # monotonic
        self._left = 0  # trials that run or could
        self._stopping = self._stop_sent = False

    def start(self, deliver: Deliver, trials: int) -> None:
        self._deliver = deliver
        self._stopping = self._stop_sent = False
        if self.grows:
            self._connection.join()
            self._joined = time.monotonic()
        else:
            slots = min(self._options.slots or max(1, cores() // self._cpus), trials * self._options.workers)
            self._connection.start_local(slots * self._cpus)
        self._refresh()

    def refusal(self, trial: Trial) -> str:
        nodes, count = self._slots.nodes_for(trial), processes(self._options, trial)
        why = reason(trial.needs, nodes, self._cpus)
        if why or (self._slots.clients(trial) != [] and (self._options.slots or count) >= count):
            return why
        rows = trial.shared_steps is not None and trial.shared_steps.rows
        why = no_room(self._options, trial, nodes)
        return f"{why}, and no agent keeps a client's rows (agent join --data FOLDER)" if why and rows else why

    def fit(self, trial: Trial) -> int:
        early = self.grows and time.monotonic() - self._joined < FIRST_SECONDS
        slot = None if early else self._slots.choose(trial, self._slots.kind(trial))
        if slot is None:
            self._slots.want(trial)
            return NO_SLOT
        return WARM if slot.actor is not None and slot.warm_key == trial.warm_key else COLD

    def submit(self, trial: Trial, journal: list[Event], attempt: int) -> str:
        kind = self._slots.kind(trial)
        agents: Sequence[Node | None] = self._slots.clients(trial) or [None] * (processes(self._options, trial) - 1)
        slot = self._slots.take(trial, attempt, kind)
        slot.followers = [self._slots.take(trial, attempt, kind, agent) for agent in agents]
        if self._slots.others:
            self._refreshed = 0.0  # they are to know
        slot.actor.run.remote(trial.to_json(), journal, attempt, self._sharing(slot, journal))
        self._drain(slot)
        return slot.node.name

    def poll(self, timeout: float, left: int) -> None:
        import ray

        began, self._left = time.monotonic(), left
        alone = not self._slots.others and began - self._joined > REFRESH_SECONDS
        period = REFRESH_SECONDS if alone else TURN_SECONDS
        if self.grows and began - self._refreshed >= period:
            self._refresh()
            for slot in self._slots.in_vain():
                self._call_off(slot)
        timeout = min(timeout, period)
        if began - self._polled > SILENT_SECONDS / 4:  # this process was suspended; do not blame the actors
            for slot in self._slots:
                slot.asked = began
        if self._stopping and not self._stop_sent:
            self._stop_sent = True
            for slot in list(self._slots):
                if slot.trial and slot.pending is not None and not slot.heard:
                    self._call_off(slot)
                elif slot.trial:
                    slot.actor.stop.options(concurrency_group="ctl").remote(slot.trial.trial_id, slot.attempt)
        busy = {slot.pending: slot for slot in (*self._slots, *self._slots.silent) if slot.pending is not None}
        if busy:
            ready, _ = ray.wait(list(busy), num_returns=1, timeout=timeout)
            if ready:
                ready, _ = ray.wait(list(busy), num_returns=len(busy), timeout=0)
            for reference in ready:
                self._report(busy[reference], reference)
            self._give_up_on_the_silent()
        elif self.grows:
            time.sleep(timeout)
        self._slots.begin_round()
        self._polled = time.monotonic()

    def held_up(self) -> str:
        holders = self._slots.holders() if self.grows else []
        if holders:
            return f"busy with the sweep of {' and of '.join(holders)}"
        return "; ".join(f"{node}, and is left alone for a while" for node in self._slots.left_alone())

    def cancel_all(self) -> None:
        self._stopping = True

    def shutdown(self) -> None:
        self._slots.clear()
        self._connection.close()

    def describe(self) -> str:
        address = self._connection.address
        where = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
        devices = Counter(node.device for node in self._slots.nodes)
        nodes = ", ".join(f"{n} {device} node{'s' * (n != 1)}" for device, n in sorted(devices.items()))
        cpus = sum(node.cpus for node in self._slots.nodes)
        return f"{where} ({nodes}, {cpus:g} CPUs, {self._cpus} a trial)"

    def _refresh(self) -> None:
        nodes = self._connection.nodes()
        self._slots.see(nodes, private.free_resources() if self.grows and nodes else {})
        self._refreshed = time.monotonic()
        if not self.grows:
            return
        runs = defaultdict[str, list[str]](list)
        for slot in self._slots:
            if slot.trial and slot.heard:
                runs[slot.node.node_id].append(slot.trial.label or slot.trial.trial_id)
        self._slots.hear(self._connection.exchange(runs, self._slots.claim(self._left)))

    def _sharing(self, slot: Slot, journal: list[Event]) -> Sharing | None:
        """Make the trial's followers join it."""
        if not slot.followers:
            return None
        assert slot.trial
        entry, mask = slot.trial.to_json(), of_weights(journal)
        peers = [RayPeer(f.actor, f.actor.follow.remote(entry, mask), f.node.name) for f in slot.followers]
        names = [follower.node.name for follower in slot.followers]
        return Sharing(peers, names, self._options.on_lost_worker == "drop", self._options.worker_patience)

    def _call_off(self, slot: Slot) -> None:
        """End an attempt whose actor has not answered yet: it may wait in Ray for as long as another sweep likes."""
        assert slot.trial
        self._release(slot)
        self._slots.drop(slot)
        trial_id = slot.trial.trial_id
        if self._stopping:
            self._deliver(Finished(trial_id, slot.attempt, Outcome(trial_id, TrialState.CANCELLED)))
        else:
            why = "called off: another sweep asked for the same slot"
            self._deliver(Lost(trial_id, slot.attempt, why, slot.node.name, blameless=True))

    def _release(self, slot: Slot) -> None:
        """Release a trial's followers; drop the ones that do not answer at once."""
        import ray

        followers, slot.followers = slot.followers, []
        calls = {}
        for follower in followers:
            self._slots.free(follower)
            follower.actor.leave.remote()  # runs after its current computation
            calls[follower.actor.stop.options(concurrency_group="ctl").remote("", 0)] = follower
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_SECONDS) if calls else ([], [])
        for call in ready:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(call)
                del calls[call]
        for call, follower in calls.items():
            self._slots.drop(follower)
            if call not in ready and follower.node != slot.node:  # its whole node may be unreachable
                self._avoid(follower.node, DEAD_SECONDS)

    # --- reports of the actors

    def _drain(self, slot: Slot) -> None:
        assert slot.trial
        drain = slot.actor.drain.options(concurrency_group="ctl")
        slot.pending = drain.remote(slot.trial.trial_id, slot.attempt, slot.cursor, FLUSH_SECONDS)
        slot.asked = time.monotonic()

    def _report(self, slot: Slot, reference: Any) -> None:
        import ray

        assert slot.trial
        trial, attempt = slot.trial, (slot.trial.trial_id, slot.attempt)
        try:
            events, outcome, leaving = ray.get(reference)
        except ray.exceptions.RayError as error:
            given_up = slot in self._slots.silent
            why = "" if given_up else why_lost(_cause(slot, error))
            self._release(slot)
            self._slots.drop(slot)
            self._refresh()
            if not given_up:
                if why == NODE_LOST:
                    self._avoid(slot.node, DEAD_SECONDS)
                self._lose(slot, why)
            return
        if slot in self._slots.silent:  # it answered, but too late
            self._slots.drop(slot)
            return
        if events or not (slot.heard or slot.node.is_agent):  # an agent's proxy answers before the agent does
            self._slots.hear_of(slot, events)
            end = events[-1] if events else None
            if isinstance(end, End) and end.outcome.state is TrialState.OUT_OF_MEMORY:
                slot.outgrown = self._slots.outgrew(slot, trial)
            self._deliver(Progress(*attempt, events[:-1] if slot.outgrown else events))
            slot.cursor += len(events)
        if outcome is None:
            self._drain(slot)
            return
        self._slots.free(slot)
        self._release(slot)
        if not leaving:
            self._slots.losses.finished(slot.node.node_id)  # it came to an end of its own
        else:
            self._slots.drop(slot)
            self._avoid(slot.node, REFUSED_SECONDS if slot.node.is_agent else LEAVING_SECONDS)
        ended, why = Outcome.read(outcome), slot.outgrown
        if leaving and ended.state is TrialState.CANCELLED and not self._stopping:
            why = "handed back: its node was asked to stop"
        if why:
            self._deliver(Lost(*attempt, why, slot.node.name, blameless=True))
        else:
            self._deliver(Finished(*attempt, ended))

    def _avoid(self, node: Node, seconds: float) -> None:
        if self.grows:  # a cluster of our own has one node: a process that was asked to end says nothing of it
            self._slots.avoid(node, seconds)

    def _lose(self, slot: Slot, why: str) -> None:
        assert slot.trial
        sick = self._slots.lose(slot, why) if self.grows else ""
        lost = Lost(slot.trial.trial_id, slot.attempt, why, slot.node.name, blameless=bool(sick), sick=sick)
        self._deliver(lost)

    def _give_up_on_the_silent(self) -> None:
        now = time.monotonic()
        waiting = [slot for slot in self._slots if slot.pending is not None and slot.heard]
        for slot in [slot for slot in waiting if now - slot.asked > SILENT_SECONDS]:
            self._release(slot)
            if self.grows:
                self._slots.give_up(slot)
                self._lose(slot, "its node does not answer")
            else:  # this machine's: its room is free at once, also if no other process is left that goes on
                self._slots.drop(slot)
                self._lose(slot, "its process does not answer")


def _cause(slot: Slot, error: Exception) -> Exception:
    """Return why a slot's actor is dead: a call that broke off may say no more than that it is unavailable.

    How the process ended reaches this driver a moment later, with the next call.
    """
    import ray

    until = time.monotonic() + ANSWER_SECONDS
    while isinstance(error, ray.exceptions.ActorUnavailableError) and time.monotonic() < until:
        stop = slot.actor.stop.options(concurrency_group="ctl").remote("", 0)
        try:
            ray.get(stop, timeout=max(0.0, until - time.monotonic()))
            break  # it answers: only the way to it was cut
        except ray.exceptions.GetTimeoutError:
            break
        except ray.exceptions.RayError as later:
            error = later
            time.sleep(0.1)
    return error


@dataclass(frozen=True)
class Ray(Executor):
    """Ray actors: one warm process per slot, on a new cluster on this machine or on the one at `cluster.address`."""

    priority: int = option(
        0, "among the sweeps of a cluster: free slots go to the highest first; equal ones share", kw_only=True
    )

    def build(self, state_dir: Path, address: str | None) -> RayBackend:
        return RayBackend(state_dir, address=address, options=self, priority=self.priority)
