"""What tests of a cluster share: a script that runs beside a sweep, and real raylets."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from zo_sweeps_bench.raylets import Cluster, Raylet, cluster, wait_for

__all__ = ["Cluster", "Raylet", "cluster", "joined", "meanwhile", "wait_for"]


@contextlib.contextmanager
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster without a node as yet, whose token this process has."""
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with cluster() as made:
        for name, value in made.token.items():
            monkeypatch.setenv(name, value)
        yield made


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
