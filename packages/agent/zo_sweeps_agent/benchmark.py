"""The gateway under COUNT simulated agents, all at once: joins, leases, journals. Real TLS, keys and disk; no trials.

The agents are one process on the same machine, each with a key, a connection and a loopback address of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from zo_sweeps import __version__
from zo_sweeps.core.events import End, Steps, write_event
from zo_sweeps.core.trial import Outcome, StoredConfig, Trial, TrialState
from zo_sweeps.devices.probe import Host
from zo_sweeps_agent import codes, leases
from zo_sweeps_agent.agent_facts import Facts
from zo_sweeps_agent.gateway import challenges
from zo_sweeps_agent.gateway.identity import Authority
from zo_sweeps_agent.gateway.serve import PKI, open_many_files, serve
from zo_sweeps_agent.known_answers import Challenge, MachineAnswers, ModelQuestion
from zo_sweeps_agent.leases import Store
from zo_sweeps_agent.protocol import Joining
from zo_sweeps_bench.measure import RatioRow
from zo_sweeps_ray.node import listens

COUNT = 1000
MESSAGES, STEPS = 10, 100  # per agent, and per message
HOST, PORT = "127.0.0.1", 7943
DRIVER = "bench"
QUESTIONS, ANSWERS = Challenge((), ModelQuestion(0, ()), ()), MachineAnswers()
MACHINE = Host("cpu", "cpu", "none", 1, 10**9, 10**9, 10**9, 10**9, False, (), {}, False)
FACTS = Facts(__version__, MACHINE, "cpu", cpus=1, gpus=0, memory_bytes=10**9, slots=1)


def rows(rounds: int) -> Iterator[RatioRow]:
    """Measure; `rounds` is ignored: it takes a minute."""
    open_many_files()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = (folder / "log").open("wb")
        process = subprocess.Popen([sys.executable, "-m", __spec__.name, name], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 90
            while not listens(HOST, PORT):
                assert time.monotonic() < deadline, "the gateway does not listen"
                time.sleep(0.05)
            yield from asyncio.run(_measure(folder, psutil.Process(process.pid)))
        finally:
            process.terminate()
            process.wait()
            log.close()


async def _measure(folder: Path, gateway: psutil.Process) -> list[RatioRow]:
    authority, store = Authority(folder / PKI), Store(folder / leases.FILE)
    fleet = [_Agent(number, folder, authority, store) for number in range(COUNT)]
    idle = gateway.memory_info().rss / 2**20
    at = _cpu(gateway)
    joins = await _all(agent.join() for agent in fleet)
    joined = _cpu(gateway)
    polls = [asyncio.create_task(agent.poll()) for agent in fleet]
    await asyncio.sleep(2)
    stamping = threading.Event()
    thread = threading.Thread(target=_stamp, args=(folder, stamping))
    thread.start()
    began = await asyncio.to_thread(_lease, folder)
    delays = [await poll - began[agent.name] for agent, poll in zip(fleet, polls, strict=True)]
    await _all(agent.take() for agent in fleet)
    leased = _cpu(gateway)
    start = time.perf_counter()
    posts = await _all(agent.send() for agent in fleet)
    seconds = time.perf_counter() - start
    sent = _cpu(gateway)
    standing = store.of_driver(DRIVER).values()
    assert all(one.state == leases.ENDED and one.received == MESSAGES + 1 for one in standing), "not all arrived once"
    memory = gateway.memory_info().rss / 2**20
    stamping.set()
    thread.join()
    for agent in fleet:
        await agent.session.close()
    store.close()
    messages = {"messages": COUNT * MESSAGES, "steps": COUNT * MESSAGES * STEPS, "seconds": round(seconds, 2)}
    joining, leasing, sending = (
        _spread(seconds, cpu)
        for seconds, cpu in ((joins, joined - at), (delays, leased - joined), (posts, sent - leased))
    )
    joining["repeated"] = float(sum(agent.repeated for agent in fleet))
    handshakes, look, parse = "TLS handshakes", "one look per 0.1 s", "JSON, one core"
    return [
        RatioRow("1,000 agents join at once: a request", _p99(joins), "s", 30, 10, handshakes, joining),
        RatioRow("1,000 agents wait: from a lease to its agent", _p99(delays), "s", 10, 2, look, leasing),
        RatioRow("1,000 agents send journals at once: a message", _p99(posts), "s", 30, 10, parse, sending),
        RatioRow(
            "messages of 100 steps, checked and fsynced", COUNT * MESSAGES / seconds, "/s", 100, 400, parse, messages
        ),
        RatioRow(
            "gateway with 1,000 agents", memory, "MiB", 1000, 400, "TLS connections", {"without agents": round(idle)}
        ),
    ]


class _Agent:
    """A board that only talks."""

    def __init__(self, number: int, folder: Path, authority: Authority, store: Store) -> None:
        self.name = f"agent-{number}"
        self._code = codes.new(authority.der)
        store.add_code(self._code.secret, time.time() + 3600)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._folder, self._authority = folder, authority.certificate.decode()
        self._address = f"127.0.{1 + number // 250}.{1 + number % 250}"
        self.session: aiohttp.ClientSession = self._open()
        self._lease, self.repeated = "", 0
        self._trial: dict[str, Any] = {}

    def _open(self, certificate: str = "") -> aiohttp.ClientSession:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=self._authority)
        if certificate:
            form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            path = self._folder / f"{self.name}.pem"
            path.write_bytes(self._key.private_bytes(*form) + certificate.encode())
            context.load_cert_chain(path)
        connector = aiohttp.TCPConnector(ssl=context, limit=2, local_addr=(self._address, 0))
        timeout = aiohttp.ClientTimeout(total=300)
        return aiohttp.ClientSession(f"https://{HOST}:{PORT}", connector=connector, timeout=timeout)

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body)
        while True:
            try:
                async with self.session.request(method, path, data=data) as answer:
                    content = await answer.json()
            except aiohttp.ClientError:  # closed by the gateway: the handshake took too long on this machine
                self.repeated += 1
                await asyncio.sleep(1)
                continue
            assert answer.status == 200, content
            return content

    async def join(self) -> list[float]:
        """Enrol and join; return the seconds of each request."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self._key, hashes.SHA256())
        pem = request.public_bytes(serialization.Encoding.PEM).decode()
        seconds = [time.perf_counter()]
        wanted = {"code_secret": self._code.secret.hex(), "csr": pem, "name": self.name, "device": "cpu"}
        certificate = (await self._ask("POST", "/v1/enrol", wanted))["certificate"]
        seconds.append(time.perf_counter())
        await self.session.close()
        self.session = self._open(certificate)
        nonce = (await self._ask("GET", "/v1/challenge"))["nonce"]
        seconds.append(time.perf_counter())
        await self._ask("POST", "/v1/join", {**Joining(FACTS, nonce).to_json(), **ANSWERS.to_json()})
        seconds.append(time.perf_counter())
        return [after - before for before, after in pairwise(seconds)]

    async def poll(self) -> float:
        """Wait for a lease; return the time when it came."""
        while not (found := (await self._ask("GET", "/v1/work?wait=25"))["leases"]):
            pass
        self._lease = found[0]["lease"]
        return time.time()

    async def take(self) -> list[float]:
        began = time.perf_counter()
        self._trial = (await self._ask("GET", f"/v1/leases/{self._lease}"))["trial"]
        return [time.perf_counter() - began]

    async def send(self) -> list[float]:
        """Send a whole journal; return the seconds of each message."""
        seconds = []
        for number in range(MESSAGES + 1):
            body: dict[str, Any] = {"first": number, "events": [_steps(number)], "outcome": None}
            if number == MESSAGES:
                outcome = Outcome(self._trial["trial_id"], TrialState.SUCCEEDED)
                body |= {"events": [write_event(End(outcome=outcome))], "outcome": outcome.to_json()}
            began = time.perf_counter()
            await self._ask("POST", f"/v1/leases/{self._lease}/events", body)
            seconds.append(time.perf_counter() - began)
        return seconds


def _steps(number: int) -> dict[str, Any]:
    losses = tuple(1 / (step + 3) for step in range(STEPS))
    coefs = tuple((loss,) for loss in losses)
    return write_event(Steps(first=1 + number * STEPS, losses=losses, coefs=coefs, seconds=1.0, tokens=1000))


def _lease(folder: Path) -> dict[str, float]:
    """Make a lease of every agent, one after the other; return when each was made."""
    store = Store(folder / leases.FILE)
    began = {}
    for number in range(COUNT):
        trial = Trial(f"{number:016x}", StoredConfig({}), warm_key="model", cost=1.0, steps=1, label=f"trial {number}")
        store.lease(DRIVER, f"agent-{number}", trial.to_json(), [], 1)
        began[f"agent-{number}"] = time.time()
    store.close()
    return began


def _stamp(folder: Path, stop: threading.Event) -> None:
    store = Store(folder / leases.FILE)
    while not stop.is_set():
        store.drive(DRIVER)
        stop.wait(5)
    store.close()


async def _all(calls: Any) -> list[float]:
    return [seconds for each in await asyncio.gather(*calls) for seconds in each]


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _p99(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


def _spread(seconds: Sequence[float], cpu: float) -> dict[str, float]:
    return {
        "median": round(statistics.median(seconds), 3),
        "99 %": round(_p99(seconds), 3),
        "largest": round(max(seconds), 3),
        "gateway's CPU seconds": round(cpu, 2),
    }


if __name__ == "__main__":
    open_many_files()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(Path(sys.argv[1]), HOST, PORT, 3600.0, None, {challenges.ANSWERS: [(QUESTIONS, ANSWERS)]}))
