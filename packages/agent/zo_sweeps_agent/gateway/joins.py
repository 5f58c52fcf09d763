"""Joining: what an agent says of itself, its known answers, its readings, and its leave."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from zo_sweeps import __version__
from zo_sweeps.record.received import clean
from zo_sweeps.schedule.placement import NOISE, other_version
from zo_sweeps_agent.agent_facts import COPIED, REMARKS
from zo_sweeps_agent.gateway import limits
from zo_sweeps_agent.gateway.admission import AGENT
from zo_sweeps_agent.gateway.challenges import ANSWERS, PROGRAMS, Challenges
from zo_sweeps_agent.gateway.exchange import ProblemError, answer, body_of, json_of, shaped
from zo_sweeps_agent.gateway.presence import Presence
from zo_sweeps_agent.gateway.writer import Writer
from zo_sweeps_agent.known_answers import MachineAnswers, compare
from zo_sweeps_agent.leases import Store, canonical
from zo_sweeps_agent.protocol import Joined, Joining, Leave, Report, Reported

NONCES = 10_000  # challenges that wait for an answer; the oldest are forgotten


class Joins:
    """The requests of an agent about itself.

    Args:
        store: for the event loop.
        write: to the store.
        presence: takes its readings.
        challenges: kind -> the known-answer questions that joining agents get.
        log: prints a line about an agent that joins or leaves.
    """

    def __init__(
        self,
        store: Store,
        write: Writer,
        presence: Presence,
        challenges: Mapping[str, Challenges],
        log: Callable[[str], None],
    ) -> None:
        self._store, self._write, self._presence = store, write, presence
        self._challenges, self._log = challenges, log
        self._nonces: OrderedDict[str, tuple[str, str, MachineAnswers]] = OrderedDict()  # nonce -> agent, kind, answer

    @property
    def routes(self) -> list[web.RouteDef]:
        """Its requests."""
        return [
            web.get("/v1/challenge", self._challenge),
            web.post("/v1/join", self._join),
            web.post("/v1/facts", self._facts),
            web.post("/v1/leave", self._leave),
        ]

    async def _challenge(self, request: web.Request) -> web.Response:
        kind = request.query.get("of", ANSWERS)
        if kind not in self._challenges:
            raise ProblemError(400, "no such challenge")
        challenge, expected = self._challenges[kind].draw()
        nonce = secrets.token_hex(8)
        self._nonces[nonce] = (request[AGENT], kind, expected)
        if len(self._nonces) > NONCES:
            self._nonces.popitem(last=False)
        return answer(replace(challenge, nonce=nonce))

    async def _join(self, request: web.Request) -> web.Response:
        name = request[AGENT]
        body = await json_of(request, limits.FACTS_BYTES)
        if why := _other_version(body):
            await self._write(lambda store: store.turn_away(name, why))
            self._log(f"{name} may not join: it {why}")
            raise ProblemError(409, f"this board {why}", version=__version__)
        asked, answers = shaped(Joining, body), shaped(MachineAnswers, body)
        host = asked.facts.probe
        depends = (host.versions, host.codes, host.executorch, host.name, host.gpus, host.l4t)
        answered = canonical([__version__, asked.facts.profile, asked.facts.client, *depends])
        if asked.nonce is None:
            agent = self._store.agent(name)
            refused = {part: why for part, why in agent.refused.items() if part not in REMARKS} if agent else {}
            again = any(host.codes.get(part) == "" for part in refused)  # its kernels ran, perhaps with more memory
            if agent is None or agent.answered != answered or agent.facts is None or again:
                raise ProblemError(409, "the head has no known answers of this board yet", challenge=True)
            lent = agent.facts.lent
        else:
            owner, kind, expected = self._nonces.pop(asked.nonce, ("", "", MachineAnswers()))
            if owner != name or kind != (PROGRAMS if asked.facts.client else ANSWERS):
                raise ProblemError(409, "an unknown or used challenge", challenge=True)
            refused = compare(expected, answers)
            lent = tuple(sorted({NOISE, *expected.losses} - set(refused)))
        facts = replace(asked.facts, lent=lent)
        await self._write(lambda store: store.join(name, facts, refused, answered))
        self._log(f"{name} joined" + "".join(f"; not lent: {what}: {why}" for what, why in refused.items()))
        return answer(Joined(lent, refused))

    async def _facts(self, request: web.Request) -> web.Response:
        report = await body_of(request, Report, limits.FACTS_BYTES)
        self._presence.read(request[AGENT], report.facts)
        agent = self._store.agent(request[AGENT])
        return answer(Reported(agent.refused.get(COPIED, "") if agent else ""))

    async def _leave(self, request: web.Request) -> web.Response:
        name, asked = request[AGENT], await body_of(request, Leave, limits.FACTS_BYTES)
        await self._write(lambda store: store.leave(name, asked.why))
        self._log(f"{name} left" + (f": {asked.why}" if asked.why else ""))
        return answer()


def _other_version(body: Any) -> str:
    """Return why a board may not join with its version of this package, whose facts may be of another shape."""
    facts = body.get("facts") if isinstance(body, dict) else None
    version = facts.get("zo_sweeps", "") if isinstance(facts, dict) else ""
    return other_version(clean(str(version)[:40]), "the head has")
