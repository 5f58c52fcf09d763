"""A follower of a trial as a process on this machine, connected by a pipe: for the inline backend."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from zo_sweeps.core.events import Event
from zo_sweeps.core.trial import Trial

END_SECONDS = 5.0


class ProcessPeer:
    """A `zo_sweeps.engine.peers.Peer` in a process that ends with `close`, or with this process.

    Args:
        target: the RunTrial, as "module:function"; its module also has `Following`.
        threads: torch's threads in that process.
    """

    def __init__(self, target: str, trial: Trial, journal: Sequence[Event], threads: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        self._pipe, theirs = context.Pipe()
        module = target.partition(":")[0]
        arguments = (theirs, module, trial.to_json(), list(journal), threads)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None  # 0 would be this whole process group to os.kill
        return self._process.pid

    def ask(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # `answer` reports it
            self._pipe.send_bytes(message)

    def answer(self, timeout: float) -> bytes | None:
        from zo_sweeps.engine.peers import PeerLostError

        try:
            return self._pipe.recv_bytes() if self._pipe.poll(timeout) else None
        except (EOFError, OSError):
            self._process.join(END_SECONDS)
            raise PeerLostError(f"a peer's process ended (exit code {self._process.exitcode})") from None

    def close(self) -> None:
        self._pipe.close()
        self._process.kill()  # it has no state to save
        self._process.join()


def _serve(pipe: Connection, module: str, trial: dict[str, Any], journal: list[Event], threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    following = importlib.import_module(module).Following(Trial.from_json(trial), journal)
    try:
        pipe.send_bytes(following.ready)
        while True:
            pipe.send_bytes(following.answer(pipe.recv_bytes()))
    except (EOFError, BrokenPipeError):
        return  # the leader has ended
