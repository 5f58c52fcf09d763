"""SIGINT and SIGTERM of a driver: ours while a sweep runs, afterwards what was there before."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM)


def on_stop(function: Callable[[], None]) -> None:
    """Calls `function` on SIGINT and SIGTERM; does nothing in a thread, which gets no signals."""

    def handle(number: int, frame: Any) -> None:
        function()

    if threading.current_thread() is threading.main_thread():
        for number in STOPS:
            signal.signal(number, handle)


@contextmanager
def signals_restored() -> Iterator[None]:
    """Puts the handlers of SIGINT and SIGTERM back: ours, and those that Ray sets when it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
