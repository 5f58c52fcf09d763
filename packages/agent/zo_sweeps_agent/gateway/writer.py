"""Writes to the store from the event loop: one thread, one transaction and one fsync for all that wait together."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from zo_sweeps_agent.leases import Store

T = TypeVar("T")
Settle = Callable[[Any, Exception | None], Any]
TOGETHER = 256  # writes in one transaction, at most


class Writer:
    """A thread that writes to a store of its own connection."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: queue.SimpleQueue[tuple[Callable[[Store], Any], Settle] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    async def __call__(self, write: Callable[[Store], T]) -> T:
        """Call `write(store)` in the thread; return its result when it is on the disk. Raises what it raises."""
        loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def settle(result: Any, error: Exception | None) -> None:
            if future.cancelled():  # the request was given up; the write was made all the same
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self._queue.put((write, lambda result, error: loop.call_soon_threadsafe(settle, result, error)))
        result: T = await future
        return result

    def close(self) -> None:
        """Finish the writes that wait, and end the thread."""
        self._queue.put(None)
        self._thread.join()
        self._store.close()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, last = [first], False
            while len(batch) < TOGETHER and not self._queue.empty():
                entry = self._queue.get()
                if last := entry is None:
                    break
                batch.append(entry)
            self._commit(batch)
            if last:
                return

    def _commit(self, batch: list[tuple[Callable[[Store], Any], Settle]]) -> None:
        results: list[tuple[Any, Exception | None]] = []
        try:
            with self._store.transaction():
                for write, _ in batch:
                    try:
                        results.append((write(self._store), None))
                    except Exception as error:  # of this one alone: its method has undone what it did
                        results.append((None, error))
        except Exception as error:  # the disk is full: nothing of the batch was written
            results = [(None, error)] * len(batch)
        for (_, settle), (result, failure) in zip(batch, results, strict=True):
            settle(result, failure)
