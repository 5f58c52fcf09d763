"""A Ray cluster of real raylets on this machine, each a process tree that can be killed, frozen and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tests.conftest import REPO
from zo_sweeps.schedule.cluster import private_token


def wait_for(condition: Callable[[], object], seconds: float = 90.0, what: str = "") -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


class Raylet:
    """`ray start --block`, and all that it starts."""

    def __init__(self, folder: Path, environment: dict[str, str], arguments: list[str], name: str) -> None:
        self.name, self._log = name, folder / f"{name}.log"
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--object-store-memory=80000000"]
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(
                [*command, f"--labels=zo.name={name},{arguments[0]}", *arguments[1:]],
                env=environment,
                cwd=REPO,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> Raylet:
        """Until it has joined."""
        started = lambda: "Ray runtime started" in self._log.read_text() or self.process.poll() is not None  # noqa: E731
        wait_for(started, what=self.name)
        assert self.process.poll() is None, self._log.read_text()
        return self

    def send(self, number: int) -> None:
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Told to leave: Ray knows at once that it is gone, not after its 14 seconds for one that was killed."""
        self.thaw()
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                if process.name() == "raylet":
                    process.terminate()
                    process.wait(10)
        self.kill()

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def actors(self) -> list[int]:
        """The processes that run trials."""
        found = []
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "TrialActor" in " ".join(process.cmdline()):
                    found.append(process.pid)
        return found

    def _tree(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


class Cluster:
    """A head that runs no trials, and the nodes that were added. `address` is to be joined with `environment`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(private_token(folder))}
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0", "OMP_NUM_THREADS": "1"}
        self.environment = {**os.environ, **quiet, **self.token, "PYTHONPATH": str(REPO)}
        self.environment.pop("RAY_AUTH_TOKEN", None)
        self.nodes: list[Raylet] = []
        self.head = self.start_head()

    def start_head(self) -> Raylet:
        folder = tempfile.mkdtemp(prefix="h", dir=self.folder)
        where = ["zo.device=cpu", "--head", f"--port={self.port}", f"--temp-dir={folder}", "--num-cpus=0"]
        self.head = Raylet(self.folder, self.environment, [*where, "--include-dashboard=false"], "head").wait()
        return self.head

    def add(self, name: str, device: str = "cpu", *, cpus: int = 1, gib: float = 8, wait: bool = True) -> Raylet:
        memory = f"--memory={int(gib * 2**30)}"
        where = [f"zo.device={device}", f"--address={self.address}", f"--num-cpus={cpus}", memory]
        node = Raylet(self.folder, self.environment, where, name)
        self.nodes.append(node)
        return node.wait() if wait else node

    def close(self) -> None:
        for node in [*self.nodes, self.head]:
            node.thaw()
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """In a short folder: Ray's sockets have 107 bytes for their paths."""
    made = Cluster(Path(tempfile.mkdtemp(prefix="zn", dir="/tmp")))
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def meanwhile(script: Callable[[], None]) -> Iterator[None]:
    """Runs `script` beside the body in a thread; if it fails, the body is interrupted, and its error raised."""
    failed: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            script()
        except BaseException as error:
            failed.append(error)
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if failed:
            raise failed[0]
