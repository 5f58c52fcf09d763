"""The gateway over TLS, by SECURITY.md's threat model: a stranger, a stolen key, an agent against others."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import facts as boards
from agents import free_port, wait
from tests.record.forged import EVENTS as FORGED
from tests.record.forged import OUTCOME, OUTCOMES, START, STEPS
from zo_sweeps import __version__
from zo_sweeps.core.errors import UserError
from zo_sweeps_agent import codes, leases, protocol
from zo_sweeps_agent.agent import commands, keys
from zo_sweeps_agent.agent.link import HeadRefusedError, Link, UnreachableError, pinned, unverified
from zo_sweeps_agent.agent_facts import Facts, Note
from zo_sweeps_agent.gateway import app, challenges, limits, serve
from zo_sweeps_agent.gateway.challenges import ANSWERS, Challenges
from zo_sweeps_agent.gateway.exchange import ProblemError
from zo_sweeps_agent.gateway.identity import Authority, read_request
from zo_sweeps_agent.gateway.limits import Buckets
from zo_sweeps_agent.known_answers import Challenge, MachineAnswers, ModelQuestion
from zo_sweeps_agent.lease_contents import StoredFile
from zo_sweeps_agent.leases import Store
from zo_sweeps_agent.on_the_head import HeadGateway as OnTheHead
from zo_sweeps_ray import inventory

LISTED = OnTheHead()
pytestmark = pytest.mark.multiprocess
CHALLENGE = Challenge((), ModelQuestion(0, ()), ("fp32", "nf4"))
KNOWN = MachineAnswers(("aa",), {"fp32": (1.0, 2.0), "nf4": (3.0, 4.0)})
ANSWER = KNOWN.to_json()
FACTS = replace(boards.FACTS, slots=2).to_json()


@dataclass
class Head:
    """A gateway in a thread, and a driver's side of its store."""

    folder: Path
    port: int
    store: Store = field(init=False)
    count: int = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def agent(self, name: str = "", *, joined: bool = True) -> Agent:
        self.count += 1
        name = name or f"board-{self.count}"
        folder = self.folder / "boards" / f"{name}-{self.count}"
        made = keys.enrol(folder, self.url, codes.parse(self.code()), name, "jetson-orin-nano", None)
        one = Agent(name, folder, made.link(folder))
        if joined:
            nonce = one.link.get("/v1/challenge")["nonce"]
            one.link.post("/v1/join", {"nonce": nonce, "facts": FACTS, **ANSWER})
        return one

    def code(self, minutes: float = 1.0) -> str:
        return serve.new_code(self.folder, minutes)

    def lease(self, agent: Agent, trial_id: str = "t", files: Sequence[StoredFile] = ()) -> str:
        self.store.drive("d")
        return self.store.lease("d", agent.name, {"trial_id": trial_id}, [], 1, files)


@dataclass
class Agent:
    name: str
    folder: Path
    link: Link

    def send(self, lease: str, first: int, *events: Any, outcome: Any = None) -> Any:
        return self.link.post(f"/v1/leases/{lease}/events", {"first": first, "events": events, "outcome": outcome})

    def raw(self, port: int) -> http.client.HTTPSConnection:
        context = pinned(
            (self.folder / "authority.pem").read_text(), self.folder / "key.pem", self.folder / "certificate.pem"
        )
        return http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    patch = pytest.MonkeyPatch()
    patch.setattr(limits, "STRANGER_BURST", 1e6)
    patch.setattr(limits, "HANDSHAKE_SECONDS", 1.0)
    patch.setattr(limits, "BODY_BYTES", 2**18)
    with gateway(tmp_path_factory.mktemp("head")) as one:
        yield one
    patch.undo()


@contextlib.contextmanager
def gateway(folder: Path, own: tuple[str, str] | None = None, port: int = 0) -> Iterator[Head]:
    """A gateway in a thread."""
    one = Head(folder, port or free_port())
    loop, tasks = asyncio.new_event_loop(), []

    async def run() -> None:
        tasks.append(asyncio.current_task())
        await serve.serve(folder, "127.0.0.1", one.port, 600.0, own, {ANSWERS: [(CHALLENGE, KNOWN)]})

    def thread() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(run())

    serving = threading.Thread(target=thread, daemon=True)
    serving.start()
    wait(lambda: _answers(one.port))
    one.store = Store(folder / leases.FILE)
    try:
        yield one
    finally:
        one.store.close()
        loop.call_soon_threadsafe(tasks[0].cancel)
        serving.join(30)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def status_of(call: Callable[[], Any]) -> int:
    with pytest.raises((HeadRefusedError, UnreachableError)) as error:
        call()
    return error.value.status if isinstance(error.value, HeadRefusedError) else int(error.value.args[0].split()[-1])


# --- a stranger


def test_a_stranger_gets_the_authority_and_nothing_else(head: Head, tmp_path: Path) -> None:
    stranger = Link(head.url, unverified())
    assert "CERTIFICATE" in stranger.get("/v1/ca")["ca"]
    agent = head.agent()
    lease = head.lease(agent)
    stores = Store(tmp_path / leases.FILE), Store(tmp_path / leases.FILE)
    every = app.GatewayApp(*stores, Authority(tmp_path / "pki"), 1.0, []).application().router.routes()
    tried = 0
    for route in every:  # so that one added later is tried too
        if route.method not in ("GET", "POST"):
            continue
        path = route.resource.canonical.format(lease=lease, digest="0" * 64, number=0)
        if path in ("/v1/ca", "/v1/enrol"):
            continue
        call = stranger.get if route.method == "GET" else lambda path: stranger.post(path, {})
        assert status_of(lambda call=call, path=path: call(path)) == 401, path
        tried += 1
    assert tried >= 8


def test_a_foreign_certificate_ends_the_handshake(head: Head, tmp_path: Path) -> None:
    """A certificate of another authority, with the very name and serial number of an agent."""
    agent = head.agent()
    other = Authority(tmp_path / "pki")
    known = head.store.agent(agent.name)
    assert known
    request = read_request(keys._request(keys._new_key(tmp_path), agent.name))
    (tmp_path / "certificate.pem").write_bytes(other.sign(request, agent.name, known.serial))
    context = pinned((agent.folder / "authority.pem").read_text(), tmp_path / "key.pem", tmp_path / "certificate.pem")
    with pytest.raises(UnreachableError):
        Link(head.url, context).get("/v1/work")


def test_an_agents_certificate_is_no_servers(head: Head) -> None:
    """A stolen board's key cannot pose as the head: it is signed by the pinned authority, for another purpose."""
    agent = head.agent()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(agent.folder / "certificate.pem", agent.folder / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def impostor() -> None:
            connection, _ = listener.accept()
            with contextlib.suppress(OSError):
                context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=impostor)
        thread.start()
        client = pinned((agent.folder / "authority.pem").read_text())
        with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
            client.wrap_socket(socket.create_connection(listener.getsockname()))
        thread.join()


def test_another_head_is_found_out_before_anything_is_sent(head: Head, tmp_path: Path) -> None:
    theirs = codes.new(Authority(tmp_path / "pki").der).text
    with pytest.raises(UserError, match="nothing was sent to it"):
        keys.enrol(tmp_path / "board", head.url, codes.parse(theirs), "x", "cpu", None)


def test_a_certificate_of_ones_own_is_checked_as_a_websites(tmp_path: Path) -> None:
    other = Authority(tmp_path / "theirs")
    own = other._server("127.0.0.1")
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(other.certificate)
    with gateway(tmp_path, own) as head:
        code = codes.parse(serve.new_code(tmp_path, 1.0, public=True))
        assert code.pin == codes.PUBLIC
        with pytest.raises(UserError, match=r"its certificate is another authority's; .* that signed it: --ca FILE"):
            keys.enrol(tmp_path / "a", head.url, code, "a", "cpu", None)
        elsewhere = head.url.replace("127.0.0.1", "127.1")  # the same server, by a name that its certificate lacks
        with pytest.raises(UserError, match=r"its certificate is not valid: .* mismatch"):
            keys.enrol(tmp_path / "a", elsewhere, code, "a", "cpu", authorities)
        with pytest.raises(UserError, match="holds no certificate in PEM in --ca"):
            keys.enrol(tmp_path / "a", head.url, code, "a", "cpu", Path(own[1]))
        with pytest.raises(UserError, match="leave it out"):
            keys.enrol(tmp_path / "a", head.url, codes.parse(head.code()), "a", "cpu", authorities)
        made = keys.enrol(tmp_path / "a", head.url, code, "a", "cpu", authorities)
        authorities.unlink()  # the board keeps it with its key
        assert made.link(tmp_path / "a").get("/v1/work", {"wait": "0"}) == {"leases": [], "stop": []}


def test_old_tls_is_refused(head: Head) -> None:
    for version, accepted in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
        context = unverified()
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        with socket.create_connection(("127.0.0.1", head.port), timeout=20) as plain:
            if accepted:
                assert context.wrap_socket(plain).version() == "TLSv1.2"
            else:
                with pytest.raises((ssl.SSLError, ConnectionResetError)):
                    context.wrap_socket(plain)


def test_a_code_works_once_for_a_while(head: Head, tmp_path: Path) -> None:
    def enrol(code: codes.Code, name: str) -> None:
        keys.enrol(tmp_path / name, head.url, code, name, "cpu", None)

    good, late = codes.parse(head.code()), codes.parse(head.code(-1.0))
    enrol(good, "first")
    for code, name in ((good, "second"), (late, "third")):
        with pytest.raises(UserError, match="not valid"):
            enrol(code, name)


def test_a_registration_whose_answer_was_lost_ends_with_the_same_code(
    head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, post, answers = codes.parse(head.code()), Link.post, []

    def lost_once(self: Link, path: str, body: Any) -> Any:
        answers.append(post(self, path, body))
        if len(answers) == 1:
            raise UnreachableError("timed out")
        return answers[-1]

    monkeypatch.setattr(Link, "post", lost_once)
    with pytest.raises(UserError, match="timed out"):
        keys.enrol(tmp_path / "board", head.url, code, "board", "cpu", None)
    made = keys.enrol(tmp_path / "board", head.url, code, "board", "cpu", None)
    assert made.link(tmp_path / "board").get("/v1/work", {"wait": "0"}) == {"leases": [], "stop": []}


def test_wrong_codes_and_strangers_requests_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    buckets = Buckets(limits.WRONG_RATE, limits.WRONG_BURST, most=2)
    assert [buckets.wait("a") for _ in range(10)] == [0.0] * 10
    assert buckets.wait("a") == pytest.approx(10.0)
    assert buckets.wait("a", take=False) == pytest.approx(10.0)
    assert [buckets.wait("b", take=False) for _ in range(11)] == [0.0] * 11, "asking takes nothing"
    assert buckets.wait("b") == 0.0, "each address has its own"
    now[0] += 10
    assert (buckets.wait("a"), buckets.wait("a") > 0) == (0.0, True)
    for other in "cd":
        buckets.wait(other)
    assert buckets.wait("a") == 0.0, "bounded memory: what was forgotten starts again"


def test_an_address_with_wrong_codes_has_to_wait(head: Head) -> None:
    key = keys._new_key(head.folder / "wrong")
    request, right = keys._request(key, "x"), codes.parse(head.code()).secret.hex()
    secrets = ["00" * 10] * int(limits.WRONG_BURST) + [right]
    away = ("127.0.0.2", 0)
    connection = http.client.HTTPSConnection("127.0.0.1", head.port, context=unverified(), source_address=away)
    statuses = []
    for secret in secrets:
        body = {"code_secret": secret, "csr": request, "name": "x", "device": "cpu"}
        connection.request("POST", "/v1/enrol", json.dumps(body))
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    assert statuses == [403] * int(limits.WRONG_BURST) + [429]
    head.agent()  # from another address


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../x"},
        {"name": "a\n"},
        {"name": 3},
        {"device": ""},
        {"csr": "no request"},
        {"csr": "\ud800"},
        {"code_secret": "zz"},
        {"code_secret": "00"},
    ],
    ids=str,
)
def test_a_malformed_request_for_a_certificate_is_refused(head: Head, change: dict[str, Any]) -> None:
    key = keys._new_key(head.folder / "malformed")
    body = {"code_secret": "00" * 10, "csr": keys._request(key, "x"), "name": "x", "device": "cpu", **change}
    with pytest.raises((HeadRefusedError, UnreachableError)) as error:
        Link(head.url, unverified()).post("/v1/enrol", body)
    assert not isinstance(error.value, HeadRefusedError) or error.value.status == 400


def test_a_connection_without_a_request_is_closed(head: Head) -> None:
    """TLS that never begins, and a request that never ends."""
    context = unverified()
    for secure in (False, True):
        connection: socket.socket = socket.create_connection(("127.0.0.1", head.port), timeout=20)
        if secure:
            connection = context.wrap_socket(connection)
            connection.sendall(b"GET /v1/ca HTTP/1.1\r\nHost:")
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""
        connection.close()


HEADERS = b"POST /v1/enrol HTTP/1.1\r\nHost: h\r\n"


def stranger(head: Head, address: str, sent: bytes) -> socket.socket:
    """A connection without a certificate, on which so much was sent."""
    plain = socket.create_connection(("127.0.0.1", head.port), timeout=20, source_address=(address, 0))
    connection = unverified().wrap_socket(plain)
    connection.sendall(HEADERS + sent)
    return connection


def answered(connection: socket.socket) -> int:
    return int(connection.recv(100).split()[1])


def test_a_strangers_request_is_measured_before_it_is_read(head: Head) -> None:
    """120 bodies of 4 MiB that trickled in took 463 MiB."""
    large = stranger(head, "127.0.0.3", f"Content-Length: {limits.STRANGER_BYTES + 1}\r\n\r\n".encode())
    assert answered(large) == 413, "of its body nothing was sent"
    parts = f"{limits.STRANGER_BYTES:x}\r\n".encode() + b" " * limits.STRANGER_BYTES + b"\r\n1\r\n \r\n"
    unknown = stranger(head, "127.0.0.3", b"Transfer-Encoding: chunked\r\n\r\n" + parts)
    assert answered(unknown) == 413, "its end was not sent"


def test_a_client_that_leaves_within_its_body_or_a_full_disk_leaves_no_traceback(
    head: Head, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = stranger(head, "127.0.0.8", b"Content-Length: 100\r\n\r\n{")
    other = head.agent()  # the first request is read by now
    left.close()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(leases.agent_records, "note", full)
    with pytest.raises(UserError, match="the head cannot store this now"):
        head.agent()
    assert other.link.get("/v1/work", {"wait": "0"}) == {"leases": [], "stop": []}
    assert [record.message for record in caplog.records if record.exc_info] == []


def test_strangers_at_a_time_are_bounded_each_and_together(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STRANGERS", 4)
    monkeypatch.setattr(limits, "STRANGERS_EACH", 2)
    slow, whole = (f"Content-Length: {size}\r\n\r\n{{}}".encode() for size in (100, 2))
    agent = head.agent()
    held = [stranger(head, f"127.0.0.{4 + i // 2}", slow) for i in range(4)]
    wait(lambda: answered(stranger(head, "127.0.0.4", whole)) == 429)
    wait(lambda: answered(stranger(head, "127.0.0.6", whole)) == 503)
    assert agent.link.get("/v1/work", {"wait": "0"}) == {"leases": [], "stop": []}, "who has a certificate is served"
    for one in held:
        one.close()
    wait(lambda: answered(stranger(head, "127.0.0.6", whole)) == 400)


def test_plain_http_is_not_answered(head: Head) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", head.port, timeout=20)
    connection.request("GET", "/v1/ca")
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.getresponse()


# --- a stolen or revoked key


def test_a_revoked_key_is_refused_at_once_and_its_trial_runs_elsewhere(head: Head) -> None:
    agent = head.agent()
    lease = head.lease(agent)
    agent.send(lease, 0, START)
    ended: list[float] = []

    def poll() -> None:
        assert status_of(lambda: agent.link.get("/v1/work", {"wait": "20", "running": lease})) == 403
        ended.append(time.monotonic())

    polling = threading.Thread(target=poll)
    polling.start()
    time.sleep(0.5)
    head.store.revoke(agent.name)
    revoked = time.monotonic()
    polling.join()
    assert ended[0] - revoked < 15, "before the poll would have ended by itself"
    assert status_of(lambda: agent.send(lease, 1, START)) == 403
    assert "revoked" in head.store.of_driver("d")[lease].why
    again = head.agent(agent.name)
    assert again.link.get("/v1/work", {"wait": "0"}) == {"leases": [], "stop": []}
    assert status_of(lambda: agent.link.get("/v1/work")) == 403, "the old key of a name that was given anew"
    key = (again.folder / keys.KEY).read_bytes()
    head.store.revoke(agent.name)
    (again.folder / "registration.json").unlink()  # by its owner, while no agent ran
    with pytest.raises(UserError, match="has, or had, the key of this machine; the same command again makes a new one"):
        keys.enrol(again.folder, head.url, codes.parse(head.code()), agent.name, "cpu", None)
    keys.enrol(again.folder, head.url, codes.parse(head.code()), agent.name, "cpu", None)
    assert (again.folder / keys.KEY).read_bytes() != key


# --- an agent against others


def test_an_agent_sees_and_writes_its_own_leases_alone(head: Head, tmp_path: Path) -> None:
    victim, thief = head.agent(), head.agent()
    secret = a_file(tmp_path / "model.safetensors", b"weights")
    lease = head.lease(victim, files=[secret])
    own = head.lease(thief)
    assert status_of(lambda: thief.link.get(f"/v1/leases/{lease}")) == 404
    assert status_of(lambda: thief.send(lease, 0, START)) == 404
    for one in (lease, own):
        assert status_of(lambda one=one: read(thief, one, secret.sha256)) == 404
    assert [found["lease"] for found in thief.link.get("/v1/work", {"wait": "0"})["leases"]] == [own]
    assert thief.link.get("/v1/work", {"wait": "0", "running": f"{own},{lease}"})["stop"] == [lease]
    assert head.store.events(lease, 0) == []
    assert read(victim, lease, secret.sha256) == b"weights"
    assert "here" not in victim.link.get(f"/v1/leases/{lease}")["files"][0], "no path of the head"


def a_file(path: Path, data: bytes) -> StoredFile:
    import hashlib

    path.write_bytes(data)
    digest, stat = hashlib.sha256(data).hexdigest(), path.stat()
    return StoredFile("model", path.name, digest, len(data), str(path), stat.st_mtime_ns)


def read(agent: Agent, lease: str, digest: str, start: int = 0) -> bytes:
    with agent.link.bytes_from(f"/v1/leases/{lease}/files/{digest}", start) as (_, parts):
        return b"".join(parts)


def test_files_are_those_of_the_lease_unchanged_and_in_parts(head: Head, tmp_path: Path) -> None:
    agent = head.agent()
    file = a_file(tmp_path / "model.safetensors", bytes(range(256)) * 100)
    lease = head.lease(agent, files=[file])
    assert read(agent, lease, file.sha256, 25_000) == (bytes(range(256)) * 100)[25_000:]
    for digest in ("..%2F..%2Fgateway.db", "0" * 64, "%00"):
        assert status_of(lambda digest=digest: read(agent, lease, digest)) == 404
    wait(lambda: head.store.of_driver("d")[lease].down == 600)
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    assert status_of(lambda: read(agent, lease, file.sha256)) == 410


def test_a_download_that_is_cut_counts_what_was_sent(head: Head, tmp_path: Path) -> None:
    agent = head.agent()
    file = a_file(tmp_path / "model.safetensors", bytes(5 * 10**7))
    lease = head.lease(agent, files=[file])
    connection = agent.raw(head.port)
    connection.request("GET", f"/v1/leases/{lease}/files/{file.sha256}")
    assert len(connection.getresponse().read(10**6)) == 10**6
    connection.close()
    connection.sock = None
    wait(lambda: head.store.of_driver("d")[lease].down > 0)
    assert 10**6 <= head.store.of_driver("d")[lease].down < 3 * 10**7


@pytest.mark.parametrize("half", range(2))
def test_malformed_events_are_never_stored(head: Head, half: int) -> None:
    """Each gets its line; the lease is over, and says so to its driver: the board would send the same again."""
    agent = head.agent()
    for event, why in list(FORGED.values())[half::2]:
        lease = head.lease(agent)
        with pytest.raises(HeadRefusedError) as refused:
            agent.send(lease, 0, STEPS, event)
        assert (refused.value.status, str(refused.value)) == (400, why)
        assert head.store.events(lease, 0) == []
        assert head.store.of_driver("d")[lease].why == f"{agent.name} sent {why}"


def test_events_that_would_be_refused_again_end_the_lease(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left open, it was leased, refused, and leased again, for ever. A gap is filled, and ends nothing."""
    agent = head.agent()
    large = {"type": "warning", "time": 1.0, "metric": "m", "text": "x" * limits.BODY_BYTES}
    for event, status, why in (
        ({**START, "time": 9.0}, 409, "an event from number 0 on that differs from the one that was sent before"),
        (large, 413, "more than 256 KiB"),
        (STEPS, 413, "more than 0 MiB of events for one trial"),
    ):
        lease = head.lease(agent)
        agent.send(lease, 0, START)
        assert status_of(lambda lease=lease: agent.send(lease, 2, STEPS)) == 409
        monkeypatch.setattr(leases, "LEASE_BYTES", 0 if event is STEPS else leases.LEASE_BYTES)
        first = 0 if status == 409 else 1
        assert status_of(lambda lease=lease, event=event, first=first: agent.send(lease, first, event)) == status
        assert head.store.of_driver("d")[lease].why == f"{agent.name} sent {why}"


@pytest.mark.parametrize("what", OUTCOMES)
def test_an_outcome_needs_the_end_that_has_it(head: Head, what: str) -> None:
    events, outcome, why = OUTCOMES[what]
    agent = head.agent()
    lease = head.lease(agent)
    with pytest.raises(HeadRefusedError) as refused:
        agent.send(lease, 0, *events, outcome=outcome)
    assert (refused.value.status, str(refused.value)) == (400, why)
    assert head.store.outcome(lease) is None


def test_fields_that_nobody_knows_go_no_further(head: Head) -> None:
    agent = head.agent()
    lease = head.lease(agent)
    agent.send(lease, 0, {**STEPS, "more": "x"})
    assert head.store.events(lease, 0) == [STEPS]


def test_numbers_that_are_none_pass_and_control_characters_do_not(head: Head) -> None:
    agent = head.agent()
    lease = head.lease(agent)
    nan = {**STEPS, "losses": [float("nan")], "coefs": [[float("-inf")]]}
    text = {"type": "warning", "time": 1.0, "metric": "m", "text": "\x1b[2Jred\x9b\tand\n"}
    assert agent.send(lease, 0, nan, text) == {"acknowledged": 2}
    first, second = head.store.events(lease, 0)
    assert (str(first["losses"]), str(first["coefs"])) == ("[nan]", "[[-inf]]")
    assert second["text"] == "?[2Jred?\tand\n"
    assert agent.send(lease, 0, nan, text) == {"acknowledged": 2}, "a repeat of it"


def test_gaps_and_the_end_over_the_wire(head: Head) -> None:
    agent = head.agent()
    lease = head.lease(agent)
    with pytest.raises(HeadRefusedError) as gap:
        agent.send(lease, 3, START)
    assert (gap.value.status, gap.value.refusal.expected) == (409, 0)
    end = {"type": "end", "time": 2.0, "outcome": OUTCOME}
    for _ in range(2):
        assert agent.send(lease, 0, START, end, outcome=OUTCOME) == {"acknowledged": 2}
    assert head.store.outcome(lease) == OUTCOME
    assert status_of(lambda: agent.send(lease, 2, START)) == 410
    assert status_of(lambda: agent.link.get(f"/v1/leases/{lease}")) == 410


def test_bodies_headers_and_rates_are_limited(head: Head) -> None:
    agent = head.agent()
    large = json.dumps({"first": 0, "events": [], "more": "x" * limits.BODY_BYTES}).encode()
    deep = b"[" * 100_000 + b"]" * 100_000
    gz = {"Content-Encoding": "gzip"}
    tries: list[tuple[bytes, dict[str, str], set[int]]] = [
        (large, {}, {413}),
        (gzip.compress(b"0" * 10**8), gz, {413}),
        (b"no gzip", gz, {400}),
        (deep, {}, {400}),
        (b"[]", {}, {400}),
        (b"{", {}, {400}),
        (b'{"first": -1, "events": []}', {}, {400}),
        (json.dumps({"first": 0, "events": [None] * (protocol.EVENTS + 1)}).encode(), {}, {400}),
        (b"{}", {"X-Long": "x" * 10_000}, {400, 431}),
        (gzip.compress(json.dumps({"first": 0, "events": [START]}).encode()), gz, {200}),
    ]
    for body, headers, expected in tries:
        connection, lease = agent.raw(head.port), head.lease(agent)
        connection.request("POST", f"/v1/leases/{lease}/events", body, headers)
        assert connection.getresponse().status in expected, body[:50]
        connection.close()
        head.store.give_up(lease, "")
    connection = agent.raw(head.port)
    statuses = []
    for _ in range(int(limits.AGENT_BURST) + 60):
        connection.request("GET", "/v1/work")
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
        if answer.status == 429:
            assert int(answer.headers["Retry-After"]) >= 1
            break
    assert statuses[-1] == 429
    assert head.agent().link.get("/v1/work", {"wait": "0"}) == {"leases": [], "stop": []}, "others are served"


# --- joining and work


def test_known_answers_decide_what_is_lent(head: Head) -> None:
    agent, other = head.agent(joined=False), head.agent(joined=False)
    nonce = agent.link.get("/v1/challenge")["nonce"]
    with pytest.raises(HeadRefusedError) as stolen:
        other.link.post("/v1/join", {"nonce": nonce, "facts": FACTS, **ANSWER})
    assert stolen.value.refusal.challenge, "another agent's challenge"
    nonce = agent.link.get("/v1/challenge")["nonce"]
    wrong = {"noise": ["aa"], "losses": {"fp32": [1.0, 2.0 + 1e-5], "nf4": []}, "failed": {"nf4": "no kernel"}}
    without = {**FACTS, "probe": {**FACTS["probe"], "codes": {"nf4": "no kernel"}}}
    answer = agent.link.post("/v1/join", {"nonce": nonce, "facts": without, **wrong})
    assert answer["lent"] == ["noise"]
    assert answer["refused"] == {"fp32": "the loss of row 1 is 2.00001, and 2.0 on the head", "nf4": "no kernel"}
    again = agent.link.post("/v1/join", {"nonce": None, "facts": without})
    assert again == answer, "known from before"
    for change in ({"versions": {"torch": "9"}}, {"codes": {"nf4": ""}}, {"name": "another GPU"}, {"l4t": "39.2"}):
        with pytest.raises(HeadRefusedError) as changed:
            agent.link.post("/v1/join", {"nonce": None, "facts": {**without, "probe": {**without["probe"], **change}}})
        assert changed.value.refusal.challenge, change
    with pytest.raises(HeadRefusedError, match=r"pip install zo-sweeps=="):
        agent.link.post("/v1/join", {"nonce": None, "facts": {**FACTS, "zo_sweeps": "0.0.1"}})
    for wrong_facts in ({**FACTS, "cpus": "6"}, {**FACTS, "slots": 10**6}, {**FACTS, "profile": "a b"}, []):
        assert status_of(lambda f=wrong_facts: agent.link.post("/v1/join", {"nonce": None, "facts": f})) == 400
    claimed = agent.link.post("/v1/join", {"nonce": None, "facts": {**without, "lent": ["nf4"]}})
    assert claimed == answer, "what it claims to lend is not asked"
    nonce = agent.link.get("/v1/challenge")["nonce"]
    agent.link.post("/v1/join", {"nonce": nonce, "facts": FACTS, **wrong})
    with pytest.raises(HeadRefusedError) as tried:
        agent.link.post("/v1/join", {"nonce": None, "facts": FACTS})
    assert tried.value.refusal.challenge, "what was refused although its kernels run: it may have lacked memory"


def test_questions_that_could_not_be_computed_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []

    async def script() -> None:
        one = Challenges(ANSWERS, print)

        async def compute() -> None:
            computed.append(1)

        monkeypatch.setattr(one, "_compute", compute)
        for seconds in (60.0, 60.0, 0.0):
            monkeypatch.setattr(challenges, "AGAIN_SECONDS", seconds)
            with pytest.raises(ProblemError, match="the head has no known answers yet"):
                one.draw()
            await asyncio.sleep(0)

    asyncio.run(script())
    assert len(computed) == 2


def test_a_board_of_another_version_is_turned_away_and_devices_says_how_to_update_it(head: Head) -> None:
    agent = head.agent()
    lease = head.lease(agent)
    old = {**FACTS, "zo_sweeps": "0.0.1"}
    with pytest.raises(HeadRefusedError, match=r"this board has zo-sweeps 0\.0\.1") as refused:
        agent.link.post("/v1/join", {"nonce": None, "facts": old})
    assert refused.value.refusal.version == __version__
    assert head.store.of_driver("d")[lease].blameless, "its trials go elsewhere"
    listed = {one.name: one for one in LISTED.devices(Note(time.time(), "", tuple(head.store.agents())).to_json())}
    cells = inventory.row(listed[agent.name], time.time())
    assert "enrolled" in cells[8]
    assert f"has zo-sweeps 0.0.1, and the head has {__version__}: pip install zo-sweeps=={__version__}" in cells[8]
    agent.link.post("/v1/join", {"nonce": None, "facts": FACTS})
    assert head.store.agent(agent.name).refused == {}
    assert agent.link.get("/v1/work") == {"leases": [], "stop": []}
    head.store.join(agent.name, Facts.read(old), {}, "")  # it joined before the head was updated
    with pytest.raises(HeadRefusedError) as refused:
        agent.link.get("/v1/work")
    assert refused.value.refusal.join


def test_work_arrives_at_once_and_a_stop_too(head: Head) -> None:
    agent = head.agent()
    leases_: list[str] = []
    threading.Timer(0.5, lambda: leases_.append(head.lease(agent))).start()
    began = time.monotonic()
    answer = agent.link.get("/v1/work", {"wait": "20"})
    assert time.monotonic() - began < 15
    assert [one["lease"] for one in answer["leases"]] == leases_
    threading.Timer(0.5, lambda: head.store.ask_to_stop(leases_[0])).start()
    running = {"wait": "20", "running": leases_[0]}
    assert agent.link.get("/v1/work", running) == {"leases": [], "stop": leases_}
    began = time.monotonic()
    assert agent.link.get("/v1/work", {"wait": "nan"}) == {"leases": [], "stop": []}
    assert time.monotonic() - began < 5
    agent.link.post("/v1/leave", {})
    assert head.store.of_driver("d")[leases_[0]].blameless


# --- files


def test_keys_are_their_owners_alone(head: Head) -> None:
    assert (head.folder / serve.PKI).stat().st_mode & 0o077 == 0
    for path in (head.folder / serve.PKI).glob("*.key"):
        assert path.stat().st_mode & 0o077 == 0
    for path in head.folder.glob("gateway.db*"):
        assert path.stat().st_mode & 0o077 == 0


def test_a_command_that_opens_and_closes_the_store_takes_nothing_with_it(head: Head) -> None:
    """SQLite's locks of this process's several connections must hold, or another's end deletes the log under them."""
    path = head.folder / leases.FILE
    code = f"from pathlib import Path; from zo_sweeps_agent.leases import Store; Store(Path({str(path)!r})).close()"
    for _ in range(2):
        agent = head.agent()
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
        third = Store(path)
        assert third.agent(agent.name)
        third.close()


def test_every_event_is_read_and_an_agent_sends_all_that_its_trials_have() -> None:
    """All but those of trials that no agent runs (shared steps, rungs, phones, circuits), and those of books."""
    from zo_sweeps.core import events
    from zo_sweeps.record.received import KINDS

    shapes = {one for one in vars(events).values() if isinstance(one, type) and issubclass(one, events.Event)}
    assert shapes - {events.Event, events.Computed, events.Unknown} == {*events.EVENTS.values()}
    books = {"sweep", "trial", "finish", "sent"}
    assert events.EVENTS.keys() - {"peers", "peer_lost", "rung", "sensors", "file"} - books == KINDS


# --- what is lost, and found again


def test_a_head_at_a_new_address_is_dialled_there_if_it_has_the_authority_that_was_pinned(
    head: Head, tmp_path: Path
) -> None:
    said: list[str] = []
    folder = keys.folder_of(tmp_path / "agent", head.url)
    keys.enrol(folder, head.url, codes.parse(head.code()), "mover", "cpu", None)
    elsewhere = f"https://localhost:{head.port}"
    with pytest.raises(UserError, match=r"there is an agent 'mover' already.*zo-sweeps agent move URL"):
        head.agent("mover")
    with (
        gateway(tmp_path / "another") as other,
        pytest.raises(UserError, match="not the head that this machine trusts"),
    ):
        commands.move(tmp_path, other.url, "", said.append)
    with pytest.raises(UserError, match="registered with no such head"):
        commands.move(tmp_path, elsewhere, "https://10.0.0.1:7443", said.append)
    assert commands.move(tmp_path, elsewhere, "", said.append) == 0
    assert said == [f"mover dials {elsewhere} from now on, by its service too: zo-sweeps agent join {elsewhere}"]
    assert keys.folder_of(tmp_path / "agent", elsewhere) == keys.folder_of(tmp_path / "agent", head.url) == folder
    assert keys.read(folder).link(folder).get("/v1/work") == {"leases": [], "stop": []}


def test_a_head_with_two_addresses_is_found_at_the_one_that_answers(head: Head, tmp_path: Path) -> None:
    folder = keys.folder_of(tmp_path / "agent", head.url)
    enrolled = keys.enrol(folder, head.url, codes.parse(head.code()), "roamer", "cpu", None)
    with pytest.raises(UserError, match="is not the address of a head"):
        keys.checked("http://10.8.0.1")
    keys.also(folder, replace(enrolled, url="https://127.0.0.1:1"), [f"https://localhost:{head.port}/"])
    registration = keys.read(folder)
    assert registration is not None
    link = registration.link(folder)
    for _ in range(2):
        with pytest.raises(UnreachableError):
            link.get("/v1/work")
        assert link.get("/v1/work") == {"leases": [], "stop": []}
        link._unreachable(OSError())  # the network changes again


def test_a_damaged_store_is_made_again_from_the_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An agent keeps its key and joins again; one that was revoked stays so; commands say what is wrong meanwhile."""
    folder = tmp_path / "head"
    folder.mkdir()
    with gateway(folder) as one:
        agent, revoked = one.agent("board"), one.agent("thief")
        one.store.revoke("thief")
    path = folder / leases.FILE
    data = bytearray(path.read_bytes())
    for at in range(4096, len(data), 4096):
        data[at : at + 100] = b"\xff" * 100  # the header is whole, as after a torn write
    path.write_bytes(data)
    for refused in (lambda: one.code(), lambda: LISTED.revoke(tmp_path / "head", "board")):
        with pytest.raises(UserError, match=r"the store of agents is damaged .*head stop, then zo-sweeps head start"):
            refused()
    capsys.readouterr()
    with gateway(folder, port=one.port):
        assert "the store of agents was damaged" in capsys.readouterr().out
        assert len(list(folder.glob("gateway.db.damaged-*"))) == 1
        with pytest.raises(HeadRefusedError) as asked:
            agent.link.get("/v1/work")
        assert asked.value.refusal.join
        nonce = agent.link.get("/v1/challenge")["nonce"]
        agent.link.post("/v1/join", {"nonce": nonce, "facts": FACTS, **ANSWER})
        assert agent.link.get("/v1/work") == {"leases": [], "stop": []}
        assert status_of(lambda: revoked.link.get("/v1/work")) == 403
