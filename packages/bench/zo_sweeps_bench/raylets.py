"""A Ray cluster of real raylets on this machine, each a process tree that can be killed, frozen and restarted."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

import zo_sweeps
from zo_sweeps.core.host import GIB
from zo_sweeps_ray import private
from zo_sweeps_ray.cluster import private_token

BOOT_SECONDS = 300.0  # on a busy machine, importing Ray can take more than a minute
SOURCES = Path(zo_sweeps.__file__).resolve().parents[1]


def wait_for(condition: Callable[[], object], seconds: float = 90.0, what: str = "") -> None:
    """Wait until `condition()` is true. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {seconds:g} s: {what}"
        time.sleep(0.05)


class Raylet:
    """`ray start --block` and its child processes, with the labels `name` and `device` in Ray."""

    def __init__(self, folder: Path, environment: dict[str, str], name: str, device: str, arguments: list[str]) -> None:
        self.name, self._log = name, folder / f"{name}.log"
        command = [sys.executable, "-m", private.CLI, "start", "--block", "--object-store-memory=80000000"]
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(
                [*command, f"--labels=zo.name={name},zo.device={device}", *arguments],
                env=environment,
                cwd=SOURCES,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> bool:
        """Wait until the node has joined; return False if it exited instead."""

        def over() -> bool:
            return "Ray runtime started" in self._log.read_text() or self.process.poll() is not None

        try:
            wait_for(over, BOOT_SECONDS, self.name)
        except BaseException:
            self.kill()
            raise
        return self.process.poll() is None

    def send(self, number: int) -> None:
        """Send a signal to every process of the tree."""
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Leave the cluster gracefully: Ray notices at once, not after 14 seconds as for a killed node."""
        self.thaw()
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                if process.name() == private.RAYLET:
                    process.terminate()
                    process.wait(10)
        self.kill()

    def freeze(self) -> None:
        """Stop all processes, as in a network failure: connections stay open but silent."""
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def actors(self) -> list[int]:
        """Return the ids of the processes that run trials."""
        pids = []
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "TrialActor" in " ".join(process.cmdline()):
                    pids.append(process.pid)
        return pids

    def _tree(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


class Cluster:
    """A head that runs no trials, and added nodes. To join `address`, set the environment variables in `token`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(private_token(folder))}
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0", "OMP_NUM_THREADS": "1"}
        self.environment = {**os.environ, **quiet, **self.token, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.environment.pop("RAY_AUTH_TOKEN", None)
        self.nodes: list[Raylet] = []
        self.start_head()

    def start_head(self) -> None:
        folder = tempfile.mkdtemp(prefix="h", dir=self.folder)
        where = ["--head", f"--port={self.port}", f"--temp-dir={folder}", "--num-cpus=0", "--include-dashboard=false"]
        self.head = self._start("head", "cpu", where)

    def add(self, name: str, device: str = "cpu", *, cpus: int = 1, gib: float = 8, **variables: str) -> Raylet:
        """Add a node with the given CPUs and memory, and further environment variables."""
        where = [f"--address={self.address}", f"--num-cpus={cpus}", f"--memory={int(gib * GIB)}"]
        self.nodes.append(self._start(name, device, where, **variables))
        return self.nodes[-1]

    def _start(self, name: str, device: str, arguments: list[str], **variables: str) -> Raylet:
        """Start a node and wait until it has joined; retry twice, because Ray gives up after 30 s on a busy machine."""
        for _ in range(3):
            node = Raylet(self.folder, {**self.environment, **variables}, name, device, arguments)
            if node.wait():
                return node
        raise AssertionError((self.folder / f"{name}.log").read_text())

    def close(self) -> None:
        for node in [*self.nodes, self.head]:
            node.thaw()
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Start a cluster in a folder with a short name, because Ray's socket paths are limited to 107 bytes."""
    started = Cluster(Path(tempfile.mkdtemp(prefix="zn", dir="/tmp")))
    try:
        yield started
    finally:
        started.close()
