"""A gateway and agents as processes, without Ray: what is real is the wire, the disk and the processes.

The agents run the trials of `tests.schedule.fakes`, say nothing about this machine, and are asked nothing: torch is
not imported.

    python agents.py gateway FOLDER PORT LEASE_SECONDS
    python agents.py agent URL CODE STATE_FOLDER NAME SLOTS DATA_FOLDER
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.conftest import REPO
from zo_sweeps.core.events import Event, Steps, read_event
from zo_sweeps.core.trial import Trial

DRIVER, PROGRAMS = "driver", "programs.json"
PATIENCE = 60.0


def free_port() -> int:
    """Of its own, so that a gateway that is started again finds it free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait(what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """The first true value."""
    end = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return value


class Process:
    """This module as a process, with its output in a file."""

    def __init__(self, log: Path, *words: object, proxy: int = 0) -> None:
        self._log = log
        through = {"HTTPS_PROXY": f"http://127.0.0.1:{proxy}", "NO_PROXY": "", "no_proxy": ""} if proxy else {}
        with log.open("a") as file:
            command = [sys.executable, __file__, *map(str, words)]
            environment = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO}/packages/agent:{REPO}/packages/ray", **through}
            self._process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=REPO)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def kill(self, number: int = signal.SIGKILL) -> int:
        self._process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        return self._process.wait(PATIENCE)


class Cable:
    """A TCP connection that can be cut: forwards a port of its own to another, while it is whole.

    It is an HTTP proxy, too, whatever host it is asked for. `bytes` passed, of both directions.
    """

    def __init__(self, to: int) -> None:
        self._to, self.whole, self.asked, self.bytes = to, True, 0, 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Nothing passes from now on."""
        self.whole = False
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ends.clear()

    def _accept(self) -> None:
        while True:
            near, _ = self._server.accept()
            try:
                if not self.whole:
                    raise OSError
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()
                continue
            if near.recv(7, socket.MSG_PEEK) == b"CONNECT":
                while not near.recv(1 << 16).endswith(b"\r\n\r\n"):
                    pass
                near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                self.asked += 1
            self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self.bytes += len(data)
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


class Head:
    """A gateway, and a driver's side of its store."""

    def __init__(self, folder: Path, lease_seconds: float, programs: Any = None) -> None:
        from zo_sweeps_agent.leases import FILE, Store

        folder.mkdir()
        self.folder, self.port, self._lease_seconds = folder, free_port(), lease_seconds
        self._agents: list[Process] = []
        if programs is not None:
            (folder / PROGRAMS).write_text(json.dumps([one.to_json() for one in programs]))
        self.start()
        wait(lambda: (folder / "pki" / "ca.pem").exists() and "listening" in self._process.said)
        self.store = Store(folder / FILE)
        threading.Thread(target=self._live, daemon=True).start()

    def start(self) -> None:
        """Start the gateway, once more if it was killed."""
        self._process = Process(self.folder / "log", "gateway", self.folder, self.port, self._lease_seconds)

    def kill(self) -> None:
        self._process.kill()

    @property
    def said(self) -> str:
        return self._process.said

    def code(self) -> str:
        from zo_sweeps_agent import codes
        from zo_sweeps_agent.gateway.identity import Authority

        code = codes.new(Authority(self.folder / "pki").der)
        self.store.add_code(code.secret, time.time() + 900)
        return code.text

    def agent(
        self, name: str, *, code: str = "", port: int = 0, proxy: int = 0, slots: int = 1, data: object = ""
    ) -> Process:
        """An agent; it goes on where one of this name stopped."""
        url = f"https://127.0.0.1:{port or self.port}"
        log, state = self.folder.parent / f"{name}.log", self.folder.parent / name
        code = code or (self.code() if not state.exists() else "-")
        one = Process(log, "agent", url, code, state, name, slots, data, proxy=proxy)
        self._agents.append(one)
        return one

    def close(self) -> None:
        """End every process."""
        for one in (*self._agents, self._process):
            one.kill()

    def lease(
        self, trial: Trial, agent: str, journal: Sequence[Event] = (), attempt: int = 1, files: Sequence[Any] = ()
    ) -> str:
        from zo_sweeps_agent.leases import RefusedError

        def made() -> str:
            with contextlib.suppress(RefusedError):
                return self.store.lease(DRIVER, agent, trial.to_json(), list(journal), attempt, files)
            return ""

        self.store.drive(DRIVER)
        return str(wait(made))

    def events(self, lease: str) -> list[Event]:
        return [*map(read_event, self.store.events(lease, 0))]

    def steps(self, lease: str) -> int:
        return sum(isinstance(event, Steps) for event in self.events(lease))

    def outcome(self, lease: str) -> dict[str, Any]:
        """Of a lease, waited for."""
        return dict(wait(lambda: self.store.outcome(lease)))

    def why(self, lease: str, name: str) -> str:
        """Why an agent's lease is over, waited for."""
        return str(wait(lambda: self.store.lease_of(lease, name).why))

    def _live(self) -> None:
        while True:
            self.store.drive(DRIVER)
            time.sleep(2)


@contextlib.contextmanager
def head(folder: Path, lease_seconds: float = 3600, programs: Any = None) -> Iterator[Head]:
    """A gateway; `programs`: known answers of the light client, with the challenge."""
    one = Head(folder, lease_seconds, programs)
    try:
        yield one
    finally:
        one.close()


def _gateway(folder: str, port: str, lease_seconds: str) -> None:
    from zo_sweeps_agent.gateway.serve import serve
    from zo_sweeps_agent.known_answers import Challenge, MachineAnswers, ModelQuestion
    from zo_sweeps_agent.protocol import KnownPrograms

    challenges: dict[str, Any] = {"answers": [(Challenge((), ModelQuestion(0, ()), ()), MachineAnswers())]}
    if (path := Path(folder) / PROGRAMS).exists():
        asked, expected = json.loads(path.read_text())
        challenges["programs"] = [(KnownPrograms.read(asked), MachineAnswers.read(expected))]
    asyncio.run(serve(Path(folder), "127.0.0.1", int(port), float(lease_seconds), None, challenges))


def _agent(url: str, code: str, state: str, name: str, slots: str, data: str) -> int:
    import facts as boards
    from zo_sweeps.core.errors import UserError
    from zo_sweeps_agent.agent import agent, commands, examiner, facts, link
    from zo_sweeps_agent.known_answers import MachineAnswers

    link.LONGEST_WAIT = 0.5
    agent.POLL_SECONDS = agent.NOTE_SECONDS = 3.0
    facts.facts = lambda device, lent, host, client: replace(
        boards.FACTS, profile=device.name, cpus=1, gpus=0, slots=lent.slots, rows=lent.rows
    )
    examiner.Examiner.host = lambda self: boards.HOST
    examiner.Examiner.answers = lambda self, challenge, troubles: MachineAnswers()
    commands.Agent = partial(agent.Agent, target="tests.schedule.fakes:run_trial")
    own = Path(data) if data else None
    options = commands.AgentOptions(url, "" if code == "-" else code, "cpu", name, slots=int(slots), data=own)
    try:
        return commands.join(Path(state), options, lambda line: print(line, flush=True))
    except UserError as error:
        print(error, flush=True)
        return 2


if __name__ == "__main__":
    sys.exit({"gateway": _gateway, "agent": _agent}[sys.argv[1]](*sys.argv[2:]))
