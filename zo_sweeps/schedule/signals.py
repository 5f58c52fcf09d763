"""SIGINT and SIGTERM of a driver: handlers for the time of a sweep, and the earlier ones restored after it."""

from __future__ import annotations

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
