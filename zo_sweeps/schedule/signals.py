"""SIGINT and SIGTERM of a driver: handlers for the time of a sweep, and the earlier ones restored after it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM)


def on_stop(function: Callable[[], None]) -> None:
    """Call `function` on SIGINT and SIGTERM; in a thread, which gets no signals, do nothing."""

    def handle(number: int, frame: Any) -> None:
        function()

    if threading.current_thread() is threading.main_thread():
        for number in STOPS:
            signal.signal(number, handle)


class Stop:
    """Why a sweep starts no further trial. Ctrl-C and SIGTERM: the second ends the sweep at once.

    Args:
        cancel_all: asks the running trials to stop after their step.

    Attributes:
        interrupted: whether there was a signal.
        cancelled: whether a cap of the budget ended the running trials.
        failing: the cause that the first trials failed of, if it is one; "".
        over: the cap of the budget that is reached; "".
    """

    def __init__(self, cancel_all: Callable[[], None]) -> None:
        self._cancel_all = cancel_all
        self.interrupted = self.cancelled = False
        self.failing = self.over = ""

    @property
    def cancels(self) -> bool:
        """Whether the running trials were asked to stop."""
        return self.interrupted or self.cancelled

    @property
    def wanted(self) -> bool:
        """Whether no further trial is started."""
        return self.cancels or bool(self.failing)

    def cancel(self) -> None:
        """Ask the running trials to stop after their step."""
        self.cancelled = True
        self._cancel_all()

    def starting(self) -> None:
        """Keep a signal until `started`: Ray does not survive an exception in the middle of its start."""
        on_stop(self._keep)

    def started(self) -> None:
        """Handle signals from now on, as Ray has set handlers of its own, and the one that was kept."""
        on_stop(self._interrupt)
        if self.interrupted:
            self._cancel_all()

    def _keep(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        os.write(2, b"stopping as soon as it has started (Ctrl-C again: stop at once)\n")  # safe in a signal handler

    def _interrupt(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True  # an observer reports it: printing is not safe in a signal handler
        self._cancel_all()


@contextmanager
def signals_restored() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM after the `with` block, replacing ours and the ones that Ray sets."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
