"""The long poll: an agent learns at once which leases it is to start and to stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from aiohttp import web

from zo_sweeps.schedule.placement import other_version
from zo_sweeps_agent import protocol
from zo_sweeps_agent.agent_facts import COPIED, JOINED
from zo_sweeps_agent.gateway import limits
from zo_sweeps_agent.gateway.admission import AGENT, Admission
from zo_sweeps_agent.gateway.exchange import ProblemError, answer
from zo_sweeps_agent.gateway.presence import Presence
from zo_sweeps_agent.gateway.writer import Writer
from zo_sweeps_agent.leases import Lease, Store
from zo_sweeps_agent.protocol import Offer

PATH = "/v1/work"
NOTHING = protocol.WorkReply()
LOOK_SECONDS = 0.1  # between looks at the store for changes by other processes
COPIES = "two machines use its key; zo-sweeps devices revoke {}, and register each with a code and a --name of its own"
PROCESSES = 4  # of one agent that are remembered
AGAIN_SECONDS = 2.0  # before an agent is told the same again


class OpenWork:
    """The agents that wait for work, and the open leases of all.

    Args:
        store: for the event loop.
        admission: of an agent whose key may be revoked while it waits.
        presence: is told that an agent which waits is there.
        write: to the store.
        log: prints a line about an agent whose key is on two machines.
    """

    def __init__(
        self, store: Store, admission: Admission, presence: Presence, write: Writer, log: Callable[[str], None]
    ) -> None:
        self._store, self._admission, self._presence = store, admission, presence
        self._write, self._log = write, log
        self._version = -1  # of the store, as last seen
        self._open: dict[str, dict[str, Lease]] = {}  # agent -> its open leases
        self._changes: dict[str, asyncio.Event] = {}  # agents that poll
        self._told: dict[str, tuple[protocol.WorkReply, float]] = {}  # agent -> its last answer, and when
        self._processes: dict[str, list[str]] = {}  # agent -> its processes that asked, the latest last

    @property
    def routes(self) -> list[web.RouteDef]:
        """Its request."""
        return [web.get(PATH, self._poll)]

    async def look(self) -> None:
        """Wake the agents that poll when another process has changed their leases, or their keys, until cancelled."""
        while True:
            self._see_changes()
            await asyncio.sleep(LOOK_SECONDS)

    def _see_changes(self) -> None:
        if (now := self._store.version()) == self._version:
            return
        self._version = now
        before, self._open = self._open, {}
        for lease in self._store.open_leases():
            self._open.setdefault(lease.agent, {})[lease.id] = lease
        for name in {*before, *self._open}:
            if _asked(before.get(name, {})) != _asked(self._open.get(name, {})) and name in self._changes:
                self._changes.pop(name).set()
        for agent in self._store.revoked():
            if agent in self._changes:
                self._changes.pop(agent).set()

    async def _poll(self, request: web.Request) -> web.Response:
        name = request[AGENT]
        agent = self._store.agent(name)
        if agent and agent.state == JOINED and (agent.facts is None or other_version(agent.facts.zo_sweeps)):
            raise ProblemError(409, "the head does not know what this board is", join=True)
        try:
            # In this order NaN is 0: among the event loop's deadlines it would keep others from their turn.
            wait = min(max(0.0, float(request.query.get("wait", "0"))), limits.WAIT_SECONDS)
        except ValueError:
            raise ProblemError(400, "wait is not a number") from None
        if self._is_copied(name, request.query.get("process", "")[:64]) and agent and COPIED not in agent.refused:
            remark = COPIES.format(name)
            await self._write(lambda store: store.remark(name, COPIED, remark))
            self._log(f"{name}: {remark} (the last asks from {request.remote})")
        self._open[name] = {one.id: one for one in self._store.open_leases(name)}
        running = set(filter(None, request.query.get("running", "").split(",")))
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        while True:
            change = self._changes.setdefault(name, asyncio.Event())
            told = self._for(name, running)
            left = end - loop.time()
            if told != NOTHING:
                before, at = self._told.get(name, (NOTHING, 0.0))
                left = min(left, at + AGAIN_SECONDS - loop.time() if before == told else 0.0)
            if left <= 0:
                if told != NOTHING:
                    self._told[name] = told, loop.time()
                return answer(told)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(change.wait(), left)
            self._presence.hear(name)
            self._admission.agent_of(request)  # its key may have been revoked meanwhile

    def _is_copied(self, name: str, process: str) -> bool:
        """Return whether two processes ask as one agent: one asks again after another. One that was restarted does not.

        Args:
            process: which asks: a name of its own.
        """
        asked = self._processes.get(name, [])
        self._processes[name] = [*(one for one in asked if one != process), process][-PROCESSES:]
        return process in asked[:-1]

    def _for(self, name: str, running: set[str]) -> protocol.WorkReply:
        """Return what an agent that runs these leases is to start and to stop."""
        own = self._open.get(name, {})
        new = tuple(
            Offer(one.id, one.trial_id, one.attempt, one.received)
            for one in own.values()
            if one.id not in running and not one.stop
        )
        return protocol.WorkReply(new, tuple(sorted(one for one in running if one not in own or own[one].stop)))


def _asked(leases: Mapping[str, Lease]) -> set[tuple[str, bool]]:
    return {(one.id, one.stop) for one in leases.values()}
