"""Joining: what an agent says of itself, its known answers, its readings, and its leave."""

from __future__ import annotations

import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from zo_sweeps import __version__
from zo_sweeps.fleet.gateway import limits
from zo_sweeps.fleet.gateway.admission import AGENT
from zo_sweeps.fleet.gateway.challenges import Challenges
from zo_sweeps.fleet.gateway.exchange import ProblemError, answer, body_of, line
from zo_sweeps.fleet.gateway.limits import NAME
from zo_sweeps.fleet.gateway.presence import Presence
from zo_sweeps.fleet.gateway.writer import Writer
from zo_sweeps.fleet.known_answers import compare
from zo_sweeps.schedule.leases import Agent, canonical
from zo_sweeps.schedule.placement import NOISE

ANSWERS, PROGRAMS = "answers", "programs"  # kinds of challenges: for torch, and for the light client
KINDS = {ANSWERS: "zo_sweeps.fleet.known_answers", PROGRAMS: "zo_sweeps.fleet.known_programs"}  # what computes them
NONCES = 10_000  # challenges that wait for an answer; the oldest are forgotten


class Joining:
    """The requests of an agent about itself.

    Args:
        write: to the store.
        presence: takes its readings.
        challenges: kind -> the known-answer questions that joining agents get.
        log: prints a line about an agent that joins or leaves.
    """

    def __init__(
        self,
        write: Writer,
        presence: Presence,
        challenges: Mapping[str, Challenges],
        log: Callable[[str], None],
    ) -> None:
        self._write, self._presence, self._challenges, self._log = write, presence, challenges, log
        self._nonces: OrderedDict[str, tuple[str, str, dict[str, Any]]] = OrderedDict()  # nonce -> agent, kind, answer

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
        self._nonces[nonce] = (request[AGENT].name, kind, expected)
        if len(self._nonces) > NONCES:
            self._nonces.popitem(last=False)
        return answer({"nonce": nonce, **challenge})

    async def _join(self, request: web.Request) -> web.Response:
        agent: Agent = request[AGENT]
        body = await body_of(request)
        facts = body.get("facts")
        if not isinstance(facts, dict) or len(canonical(facts)) > limits.FACTS_BYTES:
            raise ProblemError(400, "no facts, or too many")
        facts = _plain(facts)
        slots = _slots(facts)
        if facts.get("zo_sweeps", __version__) != __version__:
            what = f"this board has zo-sweeps {facts['zo_sweeps']} and the head {__version__}"
            raise ProblemError(409, f"{what}; pip install zo-sweeps=={__version__} on the board")
        answered = canonical([__version__, facts["profile"], facts.get("versions", {})])
        if body.get("nonce") is None:
            if agent.answered != answered:
                raise ProblemError(409, "the head has no known answers of this board yet", challenge=True)
            refused, lent = dict(agent.refused), list(agent.facts.get("lent", ()))
        else:
            owner, kind, expected = self._nonces.pop(str(body["nonce"]), ("", "", {}))
            if owner != agent.name or kind != (PROGRAMS if facts.get("light") else ANSWERS):
                raise ProblemError(409, "an unknown or used challenge", challenge=True)
            refused = compare(expected, body)
            lent = sorted({NOISE, *expected["losses"]} - set(refused))
        await self._write(lambda store: store.join(agent.name, {**facts, "lent": lent}, slots, refused, answered))
        self._log(f"{agent.name} joined" + "".join(f"; not lent: {what}: {why}" for what, why in refused.items()))
        return answer({"lent": lent, "refused": refused})

    async def _facts(self, request: web.Request) -> web.Response:
        body = await body_of(request, limits.FACTS_BYTES)
        live = body.get("facts")
        if not isinstance(live, dict):
            raise ProblemError(400, "no facts")
        self._presence.read(request[AGENT].name, {**_plain(live), "time": time.time()})
        return answer({})

    async def _leave(self, request: web.Request) -> web.Response:
        name = request[AGENT].name
        await self._write(lambda store: store.leave(name))
        self._log(f"{name} left")
        return answer({})


def _slots(facts: Mapping[str, Any]) -> int:
    """Return the slots that an agent lends. Raises ProblemError unless its facts are what placement needs."""
    profile = facts.get("profile")
    if not isinstance(profile, str) or not NAME.fullmatch(profile):
        raise ProblemError(400, "facts without a device profile")
    for name, most in (("cpus", 4096), ("gpus", 64), ("memory_bytes", 2**50), ("slots", 64)):
        value = facts.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= most:
            raise ProblemError(400, f"facts with a wrong {name!r}")
    return int(facts["slots"])


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts without control characters."""
    try:
        return dict(json.loads(line(facts)))
    except (ValueError, RecursionError):
        raise ProblemError(400, "malformed facts") from None
