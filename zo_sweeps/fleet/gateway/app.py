"""The gateway's HTTP: what agents may ask, each of them for itself alone. JSON over TLS; no pickle, no code.

Without a certificate: GET /v1/ca and POST /v1/enrol. With an agent's, whose name and serial number the store must hold
as valid at every request: the rest. Errors are {"error": line} with a status: 400 malformed, 401 no certificate, 403
revoked, 404 unknown or another agent's, 409 in conflict, 410 lease over, 413 too large, 429 and 503 later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from zo_sweeps import __version__
from zo_sweeps.fleet.codes import SECRET_BYTES
from zo_sweeps.fleet.gateway import limits
from zo_sweeps.fleet.gateway.events import checked, checked_outcome, printable
from zo_sweeps.fleet.gateway.identity import Authority, new_serial, read_request
from zo_sweeps.fleet.gateway.limits import Buckets
from zo_sweeps.fleet.gateway.writer import Writer
from zo_sweeps.fleet.known_answers import compare
from zo_sweeps.schedule.leases import (
    OPEN,
    REVOKED,
    Agent,
    CodeError,
    GapError,
    Lease,
    LeaseOverError,
    RefusedError,
    Store,
    TooLargeError,
    UnknownLeaseError,
    canonical,
)
from zo_sweeps.schedule.placement import NOISE

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
STRANGERS = {"/v1/ca", "/v1/enrol"}
LOOK_SECONDS = 0.1  # between looks at the store for changes by other processes
HEARD_SECONDS = 2.0  # between writes of when agents were heard of
REAP_SECONDS = 2.0
AGAIN_SECONDS = 2.0  # before an agent is told the same again
NONCES = 10_000  # challenges that wait for an answer; the oldest are forgotten
TAKEN = 256  # leases whose list of files is kept in memory
AGENT = web.RequestKey("agent", Agent)  # of a request: the agent whose certificate it has
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ProblemError(Exception):
    """A request that ends with an error status."""

    def __init__(self, status: int, text: str, **more: Any) -> None:
        super().__init__(text)
        self.status, self.more = status, more


class _File(web.FileResponse):
    """A file, or the part of it that the request's Range asks for; `note` is called at its begin and its end."""

    def __init__(self, path: Path, note: Callable[..., Awaitable[None]]) -> None:
        super().__init__(path, chunk_size=1 << 18)
        self._note = note

    async def prepare(self, request: web.BaseRequest) -> Any:
        await self._note(True)
        try:
            return await super().prepare(request)
        finally:
            await self._note(False, self.content_length or 0)


class Gateway:
    """The application and its tasks; `application` starts and ends them with the server.

    Args:
        reads: the store, for the event loop. writes: another connection to it.
        authority: signs agents' certificates.
        lease_seconds: silence of an agent that has taken a lease, before the lease is over.
        challenges: (challenge, its answer) that joining agents get; more may be appended later.
        log: prints a line about an agent that enrols, joins or is refused.
    """

    def __init__(
        self,
        reads: Store,
        writes: Store,
        authority: Authority,
        lease_seconds: float,
        challenges: list[tuple[dict[str, Any], dict[str, Any]]],
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._store, self._authority, self._lease_seconds = reads, authority, lease_seconds
        self._challenges, self._log = challenges, log
        self._write = Writer(writes)
        self._agents = Buckets(limits.AGENT_RATE, limits.AGENT_BURST)
        self._strangers = Buckets(limits.STRANGER_RATE, limits.STRANGER_BURST)
        self._wrong = Buckets(limits.WRONG_RATE, limits.WRONG_BURST)
        self._heard: dict[str, float] = {}
        self._live: dict[str, dict[str, Any]] = {}
        self._nonces: OrderedDict[str, tuple[str, dict[str, Any]]] = OrderedDict()  # nonce -> agent, expected answer
        self._version = -1  # of the store, as last seen
        self._open: dict[str, dict[str, Lease]] = {}  # agent -> its open leases
        self._changes: dict[str, asyncio.Event] = {}  # agents that poll
        self._told: dict[str, tuple[str, float]] = {}  # agent -> its last answer, and when
        self._files: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()  # lease -> its files
        self._downloads: Counter[str] = Counter()
        self.fresh: set[Any] = set()  # connections (protocols) without a whole request yet

    def application(self) -> web.Application:
        """Return the application."""
        app = web.Application(client_max_size=limits.BODY_BYTES, middlewares=[self._guard])
        app.router.add_get("/v1/ca", self._ca)
        app.router.add_post("/v1/enrol", self._enrol)
        app.router.add_get("/v1/challenge", self._challenge)
        app.router.add_post("/v1/join", self._join)
        app.router.add_post("/v1/facts", self._facts)
        app.router.add_post("/v1/leave", self._leave)
        app.router.add_get("/v1/work", self._work)
        app.router.add_get("/v1/leases/{lease}", self._lease)
        app.router.add_post("/v1/leases/{lease}/events", self._events)
        app.router.add_get("/v1/leases/{lease}/files/{digest}", self._file)
        app.cleanup_ctx.append(self._tasks)
        return app

    def drop_if_silent(self, connection: Any) -> None:
        """Close a connection that has sent no whole request; call it HANDSHAKE_SECONDS after it was made."""
        if connection in self.fresh:
            self.fresh.discard(connection)
            if connection.transport is not None:
                connection.transport.close()

    async def _tasks(self, app: web.Application) -> AsyncIterator[None]:
        """Run the loops that look, note and reap, while the server runs."""
        self._see_changes()
        tasks = [asyncio.create_task(one()) for one in (self._look, self._note, self._reap)]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            await self._flush()
        self._write.close()

    # --- every request

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.fresh.discard(request.protocol)
        long = limits.WAIT_SECONDS if request.path == "/v1/work" else 0.0
        seconds = None if "/files/" in request.path else limits.REQUEST_SECONDS + long
        try:
            self._admit(request)
            return await asyncio.wait_for(handler(request), seconds)
        except web.HTTPRequestEntityTooLarge:
            return _refusal(413, f"more than {limits.BODY_BYTES >> 20} MiB in one request")
        except web.RequestPayloadError:
            return _refusal(400, "the body cannot be decompressed")
        except web.HTTPException as error:
            return _refusal(error.status, error.reason)
        except ProblemError as error:
            return _refusal(error.status, str(error), **error.more)
        except GapError as error:
            return _refusal(409, str(error), expected=error.expected, differs=error.differs)
        except RefusedError as error:
            return _refusal(_STATUS.get(type(error), 409), str(error))
        except asyncio.TimeoutError:
            return _refusal(408, "the request took too long")
        except (OSError, ConnectionError):
            raise
        except Exception as error:  # of the store: a full disk. The agent keeps its events, and comes back
            self._log(f"{request.path}: {type(error).__name__}: {error}")
            return _refusal(503, "the head cannot store this now", retry=10.0)

    def _admit(self, request: web.Request) -> None:
        """Set `request[AGENT]`. Raises ProblemError for a stranger, a revoked key, and too many requests."""
        if request.path in STRANGERS:
            if wait := self._strangers.wait(request.remote or ""):
                raise ProblemError(429, "too many requests from this address", retry=wait)
            return
        agent = request[AGENT] = self._peer(request)
        if wait := self._agents.wait(agent.name):
            raise ProblemError(429, "too many requests", retry=wait)
        self._heard[agent.name] = time.time()

    def _peer(self, request: web.Request) -> Agent:
        """Return the agent whose certificate the connection has: TLS has checked it against our authority."""
        certificate = request.get_extra_info("peercert")
        if not certificate:
            raise ProblemError(401, "this needs an agent's certificate; register with: zo-sweeps agent join")
        names = [value for entry in certificate["subject"] for key, value in entry if key == "commonName"]
        agent = self._store.agent(names[0]) if names else None
        if agent is None:
            raise ProblemError(401, "no agent has this certificate")
        if agent.state == REVOKED or int(agent.serial, 16) != int(certificate["serialNumber"], 16):
            raise ProblemError(403, f"the key of {agent.name} was revoked", revoked=True)
        return agent

    # --- strangers

    async def _ca(self, request: web.Request) -> web.Response:
        return _json({"ca": self._authority.certificate.decode(), "version": __version__})

    async def _enrol(self, request: web.Request) -> web.Response:
        address = request.remote or ""
        if wait := self._wrong.wait(address, 0.0):
            raise ProblemError(429, "too many wrong codes from this address", retry=wait)
        body = await _body(request, limits.FACTS_BYTES)
        name, device = _text(body, "name"), _text(body, "device")
        if not NAME.fullmatch(name) or not NAME.fullmatch(device):
            raise ProblemError(400, "a name and a device are 1 to 63 letters, digits, '.', '_' and '-'")
        try:
            key, secret = read_request(_text(body, "csr")), bytes.fromhex(_text(body, "code_secret"))
        except ValueError as error:
            raise ProblemError(400, f"malformed request for a certificate ({error})") from None
        if len(secret) != SECRET_BYTES:
            raise ProblemError(400, "malformed one-time code")
        try:
            serial = await self._write(lambda store: store.enrol(secret, name, device, key.digest, new_serial()))
        except CodeError:
            if self._wrong.wait(address):
                raise ProblemError(429, "too many wrong codes from this address", retry=1 / limits.WRONG_RATE) from None
            self._log(f"{address}: wrong one-time code for {name}")
            raise
        except RefusedError as error:
            raise ProblemError(409, f"{error}; choose another --name, or: zo-sweeps devices revoke {name}") from None
        self._log(f"{name} ({device}) enrolled from {address}")
        certificate = self._authority.sign(key, name, serial).decode()
        return _json({"agent": name, "certificate": certificate, "ca": self._authority.certificate.decode()})

    # --- joining

    async def _challenge(self, request: web.Request) -> web.Response:
        if not self._challenges:
            raise ProblemError(503, "the head is still computing its known answers", retry=2.0)
        challenge, answer = secrets.choice(self._challenges)
        nonce = secrets.token_hex(8)
        self._nonces[nonce] = (request[AGENT].name, answer)
        if len(self._nonces) > NONCES:
            self._nonces.popitem(last=False)
        return _json({"nonce": nonce, **challenge})

    async def _join(self, request: web.Request) -> web.Response:
        agent: Agent = request[AGENT]
        body = await _body(request)
        facts = body.get("facts")
        if not isinstance(facts, dict) or len(canonical(facts)) > limits.FACTS_BYTES:
            raise ProblemError(400, "no facts, or too many")
        facts = _plain(facts)
        slots = _facts(facts)
        if facts.get("zo_sweeps", __version__) != __version__:
            what = f"this board has zo-sweeps {facts['zo_sweeps']} and the head {__version__}"
            raise ProblemError(409, f"{what}; pip install zo-sweeps=={__version__} on the board")
        answered = canonical([__version__, facts["profile"], facts.get("versions", {})])
        if body.get("nonce") is None:
            if agent.answered != answered:
                raise ProblemError(409, "the head has no known answers of this board yet", challenge=True)
            refused, lent = dict(agent.refused), list(agent.facts.get("lent", ()))
        else:
            owner, expected = self._nonces.pop(str(body["nonce"]), ("", {}))
            if owner != agent.name:
                raise ProblemError(409, "an unknown or used challenge", challenge=True)
            refused = compare(expected, body)
            lent = sorted({NOISE, *expected["losses"]} - set(refused))
        await self._write(lambda store: store.join(agent.name, {**facts, "lent": lent}, slots, refused, answered))
        self._log(f"{agent.name} joined" + "".join(f"; not lent: {what}: {why}" for what, why in refused.items()))
        return _json({"lent": lent, "refused": refused})

    async def _facts(self, request: web.Request) -> web.Response:
        body = await _body(request, limits.FACTS_BYTES)
        live = body.get("facts")
        if not isinstance(live, dict):
            raise ProblemError(400, "no facts")
        self._live[request[AGENT].name] = {**_plain(live), "time": time.time()}
        return _json({})

    async def _leave(self, request: web.Request) -> web.Response:
        name = request[AGENT].name
        await self._write(lambda store: store.leave(name))
        self._log(f"{name} left")
        return _json({})

    # --- trials

    async def _work(self, request: web.Request) -> web.Response:
        name = request[AGENT].name
        try:
            wait = min(max(float(request.query.get("wait", "0")), 0.0), limits.WAIT_SECONDS)
        except ValueError:
            raise ProblemError(400, "wait is not a number") from None
        self._open[name] = {one.id: one for one in self._store.open_leases(name)}
        running = set(filter(None, request.query.get("running", "").split(",")))
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        while True:
            change = self._changes.setdefault(name, asyncio.Event())
            answer = self._for(name, running)
            left = end - loop.time()
            if any(answer.values()):
                said, at = self._told.get(name, ("", 0.0))
                left = min(left, at + AGAIN_SECONDS - loop.time() if said == canonical(answer) else 0.0)
            if left <= 0:
                if any(answer.values()):
                    self._told[name] = canonical(answer), loop.time()
                return _json(answer)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(change.wait(), left)
            self._heard[name] = time.time()
            self._peer(request)  # its key may have been revoked meanwhile

    def _for(self, name: str, running: set[str]) -> dict[str, Any]:
        """Return what an agent that runs these leases is to start and to stop."""
        own = self._open.get(name, {})
        new = [
            {"lease": one.id, "trial_id": one.trial_id, "attempt": one.attempt, "held": one.received}
            for one in own.values()
            if one.id not in running and not one.stop
        ]
        return {"leases": new, "stop": sorted(one for one in running if one not in own or own[one].stop)}

    async def _lease(self, request: web.Request) -> web.Response:
        lease = self._store.lease_of(request.match_info["lease"], request[AGENT].name)
        if lease.state != OPEN:
            raise LeaseOverError(lease.why or "the lease has ended")
        body = self._store.body(lease.id)
        listed = [{key: file[key] for key in ("of", "path", "sha256", "bytes")} for file in body["files"]]
        known = {"lease": lease.id, "trial_id": lease.trial_id, "attempt": lease.attempt, "held": lease.received}
        response = _json({**known, **body, "files": listed})
        size = len(response.body) if isinstance(response.body, bytes) else 0
        response.enable_compression()
        await self._write(lambda store: store.sent(lease.id, size))
        return response

    async def _events(self, request: web.Request) -> web.Response:
        name = request[AGENT].name
        lease = self._store.lease_of(request.match_info["lease"], name)
        body = await _body(request)
        first, events, outcome = body.get("first"), body.get("events"), body.get("outcome")
        if type(first) is not int or first < 0 or not isinstance(events, list) or len(events) > limits.EVENTS:
            raise ProblemError(400, f"events need `first`, and a list of at most {limits.EVENTS}")
        try:
            texts = [_line(checked(event, lease.trial_id)) for event in events]
            end = None if outcome is None else _line(checked_outcome(outcome, lease.trial_id))
        except (ValueError, RecursionError) as error:
            raise ProblemError(400, str(error)) from None
        size = request.content_length or 0
        received = await self._write(lambda store: store.append(lease.id, name, first, texts, end, size))
        return _json({"acknowledged": received})

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name, digest = request[AGENT].name, request.match_info["digest"]
        lease = self._store.lease_of(request.match_info["lease"], name)
        if lease.state != OPEN:
            raise LeaseOverError(lease.why or "the lease has ended")
        file = next((one for one in self._files_of(lease.id) if one["sha256"] == digest), None)
        if file is None:
            raise ProblemError(404, "no such file of this lease")
        if self._downloads[name] >= limits.DOWNLOADS:
            raise ProblemError(429, f"more than {limits.DOWNLOADS} downloads at a time", retry=2.0)
        path = Path(file["here"])
        with contextlib.suppress(OSError):
            if path.stat().st_mtime_ns == file["stamp"] and path.stat().st_size == file["bytes"]:
                return _File(path, partial(self._downloading, name, lease.id))
        raise ProblemError(410, f"{file['path']} has changed on the head since the trial was planned")

    async def _downloading(self, name: str, lease: str, begins: bool, size: int = 0) -> None:
        self._downloads[name] += 1 if begins else -1
        self._heard[name] = time.time()
        if not begins:
            await self._write(lambda store: store.sent(lease, size))

    def _files_of(self, lease: str) -> list[dict[str, Any]]:
        if lease not in self._files:
            self._files[lease] = self._store.body(lease)["files"]
            if len(self._files) > TAKEN:
                self._files.popitem(last=False)
        return self._files[lease]

    # --- tasks

    async def _look(self) -> None:
        """Wake the agents that poll when another process has changed their leases, or their keys."""
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

    async def _note(self) -> None:
        while True:
            await asyncio.sleep(HEARD_SECONDS)
            with contextlib.suppress(Exception):  # a full disk: later
                await self._flush()

    async def _flush(self) -> None:
        heard, live = self._heard, self._live
        self._heard, self._live = {}, {}
        if heard or live:
            await self._write(lambda store: store.hear(heard, live))

    async def _reap(self) -> None:
        """End what was silent for too long. Silence counts from when this process runs, and is not suspended."""
        since = last = time.time()
        while True:
            await asyncio.sleep(REAP_SECONDS)
            now = time.time()
            if now - last > 5 * REAP_SECONDS or now < last:
                since = now
            last = now
            with contextlib.suppress(Exception):
                await self._write(partial(Store.reap, lease_seconds=self._lease_seconds, since=since))


_STATUS: Mapping[type, int] = {UnknownLeaseError: 404, LeaseOverError: 410, TooLargeError: 413, CodeError: 403}


def _asked(leases: Mapping[str, Lease]) -> set[tuple[str, bool]]:
    return {(one.id, one.stop) for one in leases.values()}


def _facts(facts: Mapping[str, Any]) -> int:
    """Return the slots that an agent lends. Raises ProblemError unless its facts are what placement needs."""
    profile = facts.get("profile")
    if not isinstance(profile, str) or not NAME.fullmatch(profile):
        raise ProblemError(400, "facts without a device profile")
    for name, most in (("cpus", 4096), ("gpus", 64), ("memory_bytes", 2**50), ("slots", 64)):
        value = facts.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= most:
            raise ProblemError(400, f"facts with a wrong {name!r}")
    return int(facts["slots"])


def _line(value: Any) -> str:
    """Return the JSON of a value, without control characters. Raises ValueError for a text that is none."""
    text = canonical(value)
    text.encode()  # a lone surrogate is no text
    cleaned = printable(text, value)
    return text if cleaned is value else canonical(cleaned)


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts without control characters."""
    try:
        return dict(json.loads(_line(facts)))
    except (ValueError, RecursionError):
        raise ProblemError(400, "malformed facts") from None


async def _body(request: web.Request, most: int = limits.BODY_BYTES) -> dict[str, Any]:
    """Return the JSON object that a request has as its body."""
    data = await request.read()
    if len(data) > most:
        raise ProblemError(413, f"more than {most >> 10} KiB")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProblemError(400, f"the body is not JSON ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise ProblemError(400, "the body is no JSON object")
    return value


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise ProblemError(400, f"no {name!r}")
    return value


def _json(value: Any) -> web.Response:
    return web.Response(body=canonical(value).encode("utf-8", "surrogatepass"), content_type="application/json")


def _refusal(status: int, text: str, retry: float = 0.0, **more: Any) -> web.Response:
    response = _json({"error": text, **more})
    response.set_status(status)
    if retry:
        response.headers["Retry-After"] = str(max(1, round(retry + 0.5)))
    return response
