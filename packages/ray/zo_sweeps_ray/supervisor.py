"""A child that runs a sweep on a cluster, and is started anew when its head was lost and has returned."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.host import die_with_parent
from zo_sweeps.schedule.backend import CannotJoinError, HeadLostError
from zo_sweeps_ray.cluster import await_answer, must_answer

HEAD_LOST = 75  # exit status of a child that has lost its head (EX_TEMPFAIL)
NOT_JOINED = 69  # ... and of one, not the first, that could not join a head that answered (EX_UNAVAILABLE)
LONGEST_PAUSE = 60.0  # seconds between attempts to join: doubled each time
ABORTS = 3  # if Ray ends so many children in a row although their head answered, the head is not the cause


def supervise(address: str, sweep: Callable[[bool], int]) -> int:
    """Run `sweep` in a child until it ends for another reason than a lost head; return its exit status.

    Args:
        address: "host:port" of the head.
        sweep: called in each child, with whether it is the first; returns the exit status, or raises HeadLostError or
            CannotJoinError.

    The first child must be able to join. A later one may find a head that does not list this machine's node yet.

    Call it before anything starts a thread: the child is forked. Ctrl-C and SIGTERM are passed on to the child.
    """
    first, aborts, pause = True, 0, 1.0
    ended = mmap.mmap(-1, 1)  # shared with the children: whether the last one ended by itself
    while True:
        ended[0] = 0
        pid = _fork()
        if not pid:
            try:
                return sweep(first)
            except HeadLostError as error:
                print(f"{error}. Waiting for it to return (Ctrl-C to stop)", flush=True)
                return HEAD_LOST
            except CannotJoinError as error:
                if first:
                    raise
                print(f"{error}. Trying again (Ctrl-C to stop)", flush=True)
                return NOT_JOINED
            finally:
                ended[0] = 1
        status = _wait(pid)
        aborted = status == -signal.SIGABRT or (status > 0 and not ended[0])
        if aborted:
            aborts = aborts + 1 if _answers(address) else 0
            print("Ray has ended the driver, as it does without a head. Waiting for one (Ctrl-C to stop)", flush=True)
        if not (aborted or status in (HEAD_LOST, NOT_JOINED)) or aborts == ABORTS:
            return status if status >= 0 else 128 - status
        if status == NOT_JOINED:
            time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE) if status == NOT_JOINED else 1.0
        await_answer(address)
        first = False


def _fork() -> int:
    """Fork; return 0 in the child, which gets no signal of the terminal and does not outlive its parent."""
    parent = os.getpid()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setpgid(0, 0)  # Ctrl-C reaches the parent alone, which passes it on: once
    return pid


def _wait(pid: int) -> int:
    """Wait for the child, and pass signals on to it; return its exit status, or the negative number of a signal."""

    def forward(number: int, frame: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _answers(address: str) -> bool:
    try:
        must_answer(address)
    except UserError:
        return False
    return True
