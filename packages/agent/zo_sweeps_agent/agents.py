"""Agents as nodes: what a slot on an agent talks to, in place of the actor that runs trials. Independent of Ray.

A `Proxies` lives on the head, where the store is. It turns a trial into a lease, and the events that the board sends
into those that `TrialActor.drain` would return, so that slots, retries and the ledger need not know an agent. All that
it knows is in the store: started again, it goes on. It keeps its driver's stamp fresh, without which leases end.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ClientLine, End, Event, Start, read_event
from zo_sweeps.core.trial import Outcome, Sharing, Trial, TrialState
from zo_sweeps.methods.definition import own_source
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.schedule.placement import Node
from zo_sweeps_agent.agent_facts import Note
from zo_sweeps_agent.lease_contents import StoredFile
from zo_sweeps_agent.lease_files import HUB, MODEL, lease_files
from zo_sweeps_agent.leases import ENDED, OPEN, Lease, RefusedError, Store
from zo_sweeps_ray.choice import LeaseLostError

PREFIX = "agent:"  # of the node ids of agents
OF_DRIVER = "/"  # in the name of a process of a driver, after the driver's
NOTE_SECONDS = 30.0  # after which the note on agents is too old: its writer, on the head, has ended
LOOK_SECONDS = 0.1  # between looks at the store
ANSWER_SECONDS = 0.02  # ... for a client's answer, by which a round may take longer
BUSY_SECONDS = 0.2  # to wait for another process's transaction, before the store is asked again a moment later
STAMP_SECONDS = 5.0  # between the driver's signs of life
Drained = tuple[list[Event], dict[str, Any] | None, bool]  # as `TrialActor.drain` returns them


def nodes(note: Note, driver: str, age: float) -> list[Node]:
    """Return the agents that can take trials of a driver, from the note that the head's reporter writes.

    Args:
        age: seconds since this process first saw that note: the clocks of two hosts may differ.
    """
    if age > NOTE_SECONDS:
        return []
    return [
        Node(
            node_id=PREFIX + agent.name,
            name=agent.name,
            device=agent.facts.profile,
            cpus=agent.facts.cpus,
            gpus=agent.facts.gpus,
            memory_bytes=agent.facts.memory_bytes,
            programs=agent.facts.probe.executorch,
            light=bool(agent.facts.client),
            slots=agent.slots,
            leased=sum(owner.partition(OF_DRIVER)[0] != driver for owner, _ in agent.running),
            refused=agent.refused,
            version=agent.facts.zo_sweeps,
            rows=frozenset(agent.facts.rows),
            gpu_bytes=agent.facts.probe.memory_bytes if agent.facts.probe.kind == "cuda" else 0,
        )
        for agent in note.agents
        if agent.facts and agent.is_online(note.time)
    ]


def bound_to_hosts(trial: Trial) -> bool:
    """Return whether a trial needs what no agent has: own members, a log, a phone, rungs, tools for circuits."""
    config = trial.config
    if not isinstance(config, TrialConfig):
        return False
    own = any(own_source(kind) for kind in config.members_used)  # a folder may hold profiles and grids alone
    paused = bool(config.train.halving)  # a lease ends with its trial
    return own or paused or bool(config.device.log) or config.device.is_phone or not config.method.kind.of_model


@dataclass
class _Held:
    """A lease, or why there is none."""

    lease: str = ""
    refused: str = ""
    error: str = ""
    lost: str = ""


class Proxies:
    """All leases of one driver, on the machine of the head.

    Args:
        store: path of the gateway's store.
        driver: a name of the driver's own.
    """

    def __init__(self, store: str, driver: str) -> None:
        self._path, self._driver = Path(store), driver
        self._opened: Store | None = None  # at first use: an actor of Ray whose constructor fails is dead for good
        self._inode = 0
        self._held: dict[tuple[str, int], _Held] = {}
        self._standing: dict[str, Lease] = {}
        self._clients: set[str] = set()  # leases of agents that are clients of trials
        self._seen = -1  # version of the store at the last look
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def _store(self) -> Store:
        """The store. Raises sqlite3.Error while it is locked (by a backup, or for a slow disk) or cannot be opened."""
        if self._opened is None:
            try:
                store = Store(self._path, busy_seconds=BUSY_SECONDS)
            except UserError as error:
                raise sqlite3.OperationalError(str(error)) from None
            known = store.of_driver(self._driver)
            for held in self._held.values():
                if held.lease and held.lease not in known:
                    held.lost = "the gateway has set its damaged store aside, with this lease"
            self._held = {(one.trial_id, one.attempt): _Held(one.id) for one in known.values()} | self._held
            self._opened, self._inode = store, self._path.stat().st_ino
        return self._opened

    def _reopen(self) -> None:
        """Open the store anew if the gateway has made another one at its place."""
        if self._opened is not None and self._path.stat().st_ino != self._inode:
            self._opened, self._seen = None, -1  # a call in another thread may still use the old one
            self._store.version()

    async def run(
        self,
        agent: str,
        profile: str,
        threads: int,
        trial: dict[str, Any],
        journal: list[Event],
        attempt: int,
        sharing: Sharing | None = None,
    ) -> None:
        """Make a lease of an agent for one attempt; return when it is made, or refused. A repeat does nothing."""
        assert sharing is None, "an agent shares no steps"
        self._watch()
        key, held = (trial["trial_id"], attempt), _Held()
        while self._opened is None:
            await asyncio.sleep(LOOK_SECONDS)
        if self._held.setdefault(key, held) is not held:
            return
        try:
            files = await asyncio.to_thread(_files, trial)
            contents = trial, journal, attempt, files, profile, threads
            while not held.lease and self._held.get(key) is held:
                try:
                    held.lease = await asyncio.to_thread(self._store.lease, self._driver, agent, *contents)
                    self._look()
                except sqlite3.Error:
                    await asyncio.sleep(LOOK_SECONDS)
            if self._held.get(key) is not held:  # given up meanwhile
                await self._tell(held, lambda lease: self._store.give_up(lease, "its driver gave it up"))
        except RefusedError as error:
            held.refused = str(error)
        except Exception as error:  # whatever it is, the driver waits for it
            held.error = f"{type(error).__name__}: {error}"

    async def drain(self, trial_id: str, attempt: int, cursor: int, wait: float) -> Drained:
        """Return events from number `cursor` on, the outcome (with the last events), and whether to avoid the agent.

        Waits for news up to `wait` seconds; while the store is locked, there are none. Raises LeaseLostError.
        """
        self._watch()
        key, end = (trial_id, attempt), time.monotonic() + wait
        async with self._changed:
            while not self._has_news(key, cursor) and (left := end - time.monotonic()) > 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left)
        held = self._held.get(key)
        if held is None:
            return [], None, False  # the call of `run` has not come yet
        try:
            return self._drained(trial_id, held, cursor)
        except sqlite3.Error:
            return [], None, False

    def _drained(self, trial_id: str, held: _Held, cursor: int) -> Drained:
        if held.lost:
            raise LeaseLostError(held.lost)
        if held.error:
            return _failed(trial_id, held.error)
        if held.refused:
            return [], _cancelled(trial_id), True
        if (lease := self._standing.get(held.lease)) is None:
            return [], None, False
        events = [_placed(read_event(event), lease) for event in self._store.events(lease.id, cursor)]
        if lease.state == OPEN:
            stopped = lease.stop and not lease.online
            return events, _cancelled(trial_id) if stopped else None, False
        if cursor + len(events) < lease.received:
            return events, None, False  # it ended between the two looks
        if lease.state == ENDED:
            outcome = Outcome.read(self._store.outcome(lease.id))
            if outcome.state is TrialState.LOST and not events:
                raise LeaseLostError(outcome.error or "its process ended unexpectedly")
            if outcome.state is TrialState.LOST:
                return events, None, False
            return events, _with_bytes(outcome, lease).to_json(), False
        if events:
            return events, None, False
        if lease.blameless:
            return [], _cancelled(trial_id), True
        raise LeaseLostError(lease.why)

    async def stop(self, trial_id: str, attempt: int) -> None:
        """Ask the agent to end the attempt as CANCELLED at its next step."""
        if held := self._held.get((trial_id, attempt)):
            await self._tell(held, lambda lease: self._store.ask_to_stop(lease))

    async def give_up(self, trial_id: str, attempt: int) -> None:
        """End the lease of an attempt that the driver no longer follows."""
        if held := self._held.pop((trial_id, attempt), None):
            await self._tell(held, lambda lease: self._store.give_up(lease, "its driver gave it up"))

    async def close(self) -> None:
        """End all leases: the driver ends."""
        for trial_id, attempt in list(self._held):
            await self.give_up(trial_id, attempt)
        for lease in list(self._clients):
            await self.leave(lease)

    async def follow(
        self, agent: str, profile: str, threads: int, lease: str, trial: dict[str, Any], journal: list[Event]
    ) -> bytes:
        """Make `lease`, by which an agent is a client of the trial; return its first message. A repeat makes no other.

        Raises LeaseLostError.
        """
        self._watch()
        try:
            files = [file for file in await asyncio.to_thread(_files, trial) if file.of in (MODEL, HUB)]
        except UserError as error:
            raise LeaseLostError(str(error)) from None
        contents = agent, trial, journal, 1, files, profile, threads, lease
        while True:
            try:
                await asyncio.to_thread(self._store.lease, self._driver, *contents)
                break
            except sqlite3.Error:
                await asyncio.sleep(LOOK_SECONDS)
            except RefusedError as error:
                raise LeaseLostError(str(error)) from None
        self._clients.add(lease)
        return await self._answer_to(lease, 0)

    async def answer(self, lease: str, number: int, question: bytes) -> bytes:
        """Ask a client its question of this number; return the answer. A repeat asks nothing. Raises LeaseLostError."""
        self._watch()
        while True:
            try:
                await asyncio.to_thread(self._store.ask, lease, number, question)
                return await self._answer_to(lease, number)
            except sqlite3.Error:
                await asyncio.sleep(LOOK_SECONDS)

    async def leave(self, lease: str) -> None:
        """End a client's lease: its trial has ended."""
        self._clients.discard(lease)
        await self._tell(_Held(lease), lambda one: self._store.give_up(one, "the trial has ended"))

    async def _answer_to(self, lease: str, number: int) -> bytes:
        while True:
            with contextlib.suppress(sqlite3.Error):
                (standing,) = self._store.standing([lease]).values()  # before the answer: none follows its end
                if (answer := self._store.answer_to(lease, number)) is not None:
                    return answer
                if standing.state != OPEN:
                    ended = self._store.outcome(lease) or {}
                    raise LeaseLostError(standing.why or ended.get("error") or "it ended")
            await asyncio.sleep(ANSWER_SECONDS)

    async def _tell(self, held: _Held, what: Callable[[str], None]) -> None:
        """Change a lease in the store, once it is not locked."""
        while held.lease:
            try:
                await asyncio.to_thread(what, held.lease)
                self._look()
                return
            except sqlite3.Error:
                await asyncio.sleep(LOOK_SECONDS)

    def _has_news(self, key: tuple[str, int], cursor: int) -> bool:
        held = self._held.get(key, _Held())
        lease = self._standing.get(held.lease)
        return bool(
            held.refused or held.error or held.lost or (lease and (lease.state != OPEN or lease.received > cursor))
        )

    def _watch(self) -> None:
        """Start the loop that looks at the store, at the first call: before, there is no loop to start it in."""
        if not self._tasks:
            self._tasks.append(asyncio.create_task(self._loop()))

    async def _loop(self) -> None:
        stamped = 0.0
        while True:
            with contextlib.suppress(sqlite3.Error, OSError):  # a full disk, or a store that is busy: later
                self._reopen()
                if time.monotonic() - stamped > STAMP_SECONDS:
                    self._seen = -1  # an agent may have gone offline
                    await asyncio.to_thread(self._store.drive, self._driver)
                    stamped = time.monotonic()
            with contextlib.suppress(sqlite3.Error):
                if (now := self._store.version()) != self._seen:
                    self._look()
                    self._seen = now
                    async with self._changed:
                        self._changed.notify_all()
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        """Read the leases again that were open; the others do not change."""
        known = self._standing
        held = [one.lease for one in self._held.values() if one.lease]
        self._standing = known | self._store.standing(
            [one for one in held if one not in known or known[one].state == OPEN]
        )


def _files(trial: Mapping[str, Any]) -> list[StoredFile]:
    config = Trial.from_json(trial).config
    if "model" not in config.to_json():
        return []  # a trial that computes nothing, of a benchmark
    return lease_files(TrialConfig.of(config))


def _placed(event: Event, lease: Lease) -> Event:
    """Return an event with what the head knows better than the board: where it runs, and the bytes of its lease.

    Raises LeaseLostError for a line of a log: this board is not one that runs the light client.
    """
    if isinstance(event, ClientLine):
        raise LeaseLostError(f"{lease.agent} sent a log of the light client, which it does not run")
    if isinstance(event, Start):
        return event.at(lease.agent, lease.profile)
    return replace(event, outcome=_with_bytes(event.outcome, lease)) if isinstance(event, End) else event


def _with_bytes(outcome: Outcome, lease: Lease) -> Outcome:
    metrics = {"agent_bytes_down": float(lease.down), "agent_bytes_up": float(lease.up)}
    return replace(outcome, metrics={**outcome.metrics, **metrics})


def _cancelled(trial_id: str) -> dict[str, Any]:
    return Outcome(trial_id, TrialState.CANCELLED).to_json()


def _failed(trial_id: str, error: str) -> Drained:
    outcome = Outcome(trial_id, TrialState.FAILED, error=error)
    return [End(outcome=outcome)], outcome.to_json(), False


class AgentSlot:
    """The proxy of one agent as a slot sees it: with the methods of a Ray actor of `TrialActor`.

    Args:
        proxies: the actor of `Proxies`.
        node: the agent.
        threads: of a trial's process.
    """

    def __init__(self, proxies: Any, node: Node, threads: int) -> None:
        self._proxies, self._lease, self._asked = proxies, "", 0
        self.run = _Method(lambda *args: proxies.run.remote(node.name, node.device, threads, *args))
        self.drain = _Method(proxies.drain.remote)
        self.stop = _Method(proxies.stop.remote)
        self.follow = _Method(partial(self._follow, node, threads))
        self.answer = _Method(self._answer)
        self.leave = _Method(lambda: proxies.leave.remote(self._lease))

    def _follow(self, node: Node, threads: int, trial: dict[str, Any], journal: list[Event]) -> Any:
        self._lease, self._asked = secrets.token_hex(8), 0
        return self._proxies.follow.remote(node.name, node.device, threads, self._lease, trial, journal)

    def _answer(self, question: bytes) -> Any:
        self._asked += 1
        return self._proxies.answer.remote(self._lease, self._asked, question)

    def give_up(self, trial_id: str, attempt: int) -> None:
        """End the lease of an attempt."""
        self._proxies.give_up.remote(trial_id, attempt)


class _Method:
    """A method of an actor: `.remote(...)`, and `.options(...)`, of which none matters here."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call

    def options(self, **_: Any) -> _Method:
        return self
