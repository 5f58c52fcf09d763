"""A head and workers as a user starts them: real commands, real processes, folders of their own."""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import REPO
from tests.schedule.nodes import wait_for
from zo_sweeps_ray.cluster import private_folder, remove_short_folder, token_environment
from zo_sweeps_ray.private import Head

# No test is about how long Ray takes: 5 s alone, more than a minute only to be read where others have the cores.
PATIENCE = 300.0
CLEAN = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "MLFLOW_TRACKING_USERNAME"}


def free_port() -> int:
    """Below the range that systems take for outgoing connections, so that it stays free."""
    for port in range(21000 + os.getpid() % 1000, 32000):
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    raise AssertionError("no free port")


def environment(home: Path, **more: str) -> dict[str, str]:
    """Of a user who has no token anywhere."""
    kept = {name: value for name, value in os.environ.items() if name not in CLEAN}
    return {
        **kept,
        "HOME": str(home),
        "PYTHONPATH": f"{REPO}:{REPO}/packages/agent:{REPO}/packages/ray",
        "COLUMNS": "200",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def zo(*words: str | Path, home: Path, timeout: float = 200, **more: str) -> subprocess.CompletedProcess[str]:
    """`zo-sweeps WORDS`."""
    command = [sys.executable, "-m", "zo_sweeps", *map(str, words)]
    return subprocess.run(
        command, env=environment(home, **more), cwd=home, capture_output=True, text=True, timeout=timeout
    )


def kill_tree(process: subprocess.Popen[Any]) -> None:
    """Kill a process and its descendants, as a power cut would; nothing if it has ended."""
    with contextlib.suppress(psutil.Error):
        tree = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for one in tree:
            with contextlib.suppress(psutil.Error):
                one.kill()
    process.wait()


class Worker:
    """`zo-sweeps worker join`, in the foreground of a process of its own."""

    def __init__(self, machines: Machines, *words: str, name: str, prefix: tuple[str, ...] = ()) -> None:
        self.state, self.name = machines.folder / name, name
        self._log = machines.folder / f"{name}.log"
        command = [sys.executable, "-m", "zo_sweeps", "worker", "join"]
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(
                [*prefix, *command, *words, "--name", name, "--state-dir", str(self.state)],
                env=environment(machines.home),
                cwd=machines.home,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def raylet(self) -> psutil.Process | None:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                if child.name() == "raylet" and child.status() != psutil.STATUS_ZOMBIE:
                    return child
        return None

    def end(self) -> None:
        kill_tree(self.process)
        remove_short_folder(self.state / "worker")


class Machines:
    """A head, started by the command, and the workers that join it."""

    def __init__(self, folder: Path, *words: str, prefix: tuple[str, ...] = ()) -> None:
        self.folder, self.home, self.state = folder, folder / "home", folder / "runs"
        self.home.mkdir()
        self.prefix, self.workers = prefix, []
        self.ports = [free_port()]
        self.ports.append(next(p for p in range(self.ports[0] + 1, 32000) if _is_free(p)))
        self._words = words
        self.said = self.start()
        self.address = re.search(r"Ray head: (\S+)", self.said)[1]
        self.token = Path(re.search(r"token: (\S+)", self.said)[1])

    def start(self) -> str:
        """Start the head, also once more after it was stopped or killed; what it says."""
        command = [*self.prefix, sys.executable, "-m", "zo_sweeps", "head", "start", "--state-dir", str(self.state)]
        command += ["--port", str(self.ports[0]), "--mlflow-port", str(self.ports[1]), "--dashboard-port", "0"]
        command += ["--gateway-port", "0", *self._words]  # its usual port may be another test's
        started = subprocess.run(
            command, env=environment(self.home), cwd=self.home, capture_output=True, text=True, timeout=400
        )
        assert started.returncode == 0, started.stderr + self.log()
        return started.stdout

    def zo(self, *words: str | Path) -> str:
        """What a command says that succeeds on the head's machine."""
        command = [*self.prefix, sys.executable, "-m", "zo_sweeps", *map(str, words)]
        done = subprocess.run(
            command, env=environment(self.home), cwd=self.home, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def code(self) -> str:
        """A new one-time code."""
        return re.findall(r"--code (\S+)", self.zo("head", "code", "--state-dir", self.state))[0]

    @property
    def login(self) -> dict[str, str]:
        """Environment variables of a driver: the token, and MLflow's user and password where it asks for them."""
        found = {"RAY_AUTH_TOKEN_PATH": str(self.token)}
        settings = configparser.ConfigParser(interpolation=None)
        if settings.read(self.state / "mlflow" / "auth.ini"):
            user = dict(settings["mlflow"])
            found |= {"MLFLOW_TRACKING_USERNAME": user["admin_username"]}
            found |= {"MLFLOW_TRACKING_PASSWORD": user["admin_password"]}
        return found

    def log(self) -> str:
        return "\n".join(p.read_text() for p in (self.state / "head").glob("*.log"))

    def join(self, *words: str, name: str, prefix: tuple[str, ...] = ()) -> Worker:
        worker = Worker(self, self.address, "--token-file", str(self.token), *words, name=name, prefix=prefix)
        self.workers.append(worker)
        return worker

    def member(self, name: str, *words: str) -> Worker:
        """The worker of that name, where it runs; else one that joins now."""
        found = [one for one in self.workers if one.name == name and one.process.poll() is None]
        return found[0] if found else self.join(*words, name=name)

    def nodes(self) -> dict[str, dict]:
        """The living nodes, by their zo.name."""
        nodes = Head(self.address, token_environment(self.token)).nodes()
        return {node["Labels"].get("zo.name", ""): node for node in nodes if node["Alive"]}

    def wait_for_node(self, name: str, *, other_than: str = "") -> str:
        """Its id, once the head knows it as living."""
        found: list[str] = []

        def there() -> bool:
            node = self.nodes().get(name)
            if node and node["NodeID"] != other_than:
                found.append(node["NodeID"])
            return bool(found)

        wait_for(there, PATIENCE, f"{name} in {self.address}")
        return found[0]

    def processes(self) -> list[psutil.Process]:
        """Everything that runs from these folders."""
        short = [str(private_folder(self.state / "head")), str(self.folder)]
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            line = " ".join(process.info["cmdline"] or [])
            if process.info["status"] != psutil.STATUS_ZOMBIE and any(name in line for name in short):
                found.append(process)
        return found

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        zo("head", "stop", "--state-dir", self.state, home=self.home)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        remove_short_folder(self.state / "head")


@contextlib.contextmanager
def machines(*words: str, prefix: tuple[str, ...] = ()) -> Iterator[Machines]:
    with tempfile.TemporaryDirectory(prefix="zof") as folder:
        them = Machines(Path(folder), *words, prefix=prefix)
        try:
            yield them
        finally:
            them.close()


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_server(("", port)):
        return True
    return False
