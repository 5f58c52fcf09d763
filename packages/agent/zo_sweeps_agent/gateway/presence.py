"""When agents were heard of and what they read, noted together, and the end of leases that were silent for too long."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial

from zo_sweeps.devices.probe import Reading
from zo_sweeps_agent.gateway.writer import Writer
from zo_sweeps_agent.leases import Store

HEARD_SECONDS = 2.0  # between writes of when agents were heard of
REAP_SECONDS = 2.0


class Presence:
    """What is known of the agents that ask, until it is written.

    Args:
        write: to the store.
        lease_seconds: silence of an agent that has taken a lease, before the lease is over.
    """

    def __init__(self, write: Writer, lease_seconds: float) -> None:
        self._write, self._lease_seconds = write, lease_seconds
        self._heard: dict[str, float] = {}
        self._readings: dict[str, Reading] = {}

    def hear(self, agent: str) -> None:
        """Note that an agent was heard of now."""
        self._heard[agent] = time.time()

    def read(self, agent: str, reading: Reading) -> None:
        """Note an agent's reading of its condition."""
        self._readings[agent] = reading

    async def keep(self) -> None:
        """Write the notes from time to time, until cancelled."""
        while True:
            await asyncio.sleep(HEARD_SECONDS)
            with contextlib.suppress(Exception):  # a full disk: later
                await self.flush()

    async def flush(self) -> None:
        """Write the notes."""
        heard, readings = self._heard, self._readings
        self._heard, self._readings = {}, {}
        if heard or readings:
            await self._write(lambda store: store.hear(heard, readings))

    async def reap(self) -> None:
        """End what was silent for too long. Silence counts from when this process runs, and is not suspended."""
        since = last = time.time()
        while True:
            await asyncio.sleep(REAP_SECONDS)
            now = time.time()
            if now - last > 5 * REAP_SECONDS or now < last:
                since = now
            last = now
            with contextlib.suppress(Exception):
                await self._write(partial(Store.reap, lease_seconds=self._lease_seconds, since=since))
