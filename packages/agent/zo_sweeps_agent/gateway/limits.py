"""Limits of the gateway, so that no peer can take all of it: sizes, times, and requests per second."""

from __future__ import annotations

import time
from collections import OrderedDict

BODY_BYTES = 4 * 2**20  # of a request, after decompression
FACTS_BYTES = 64 * 2**10  # of what an agent says of itself
STRANGER_BYTES = 16 * 2**10  # of a request without a certificate: a one-time code, and a signing request
HEADER_BYTES = 8190  # of the request line, and of each header
STRANGER_SECONDS = 15.0  # for such a request
STRANGERS, STRANGERS_EACH = 256, 32  # such requests at a time, of all addresses and of one
REQUEST_SECONDS = 60.0  # for a request, body included; a poll may take WAIT_SECONDS longer
WAIT_SECONDS = 30.0
HANDSHAKE_SECONDS = 15.0  # from the connection to its first whole request: TLS, then the headers
IDLE_SECONDS = 75.0  # between requests on one connection
CONNECTIONS = 8192
DOWNLOADS = 4  # at a time, per agent
AGENT_RATE, AGENT_BURST = 20.0, 60.0  # requests per second of one agent
STRANGER_RATE, STRANGER_BURST = 5.0, 50.0  # of one address without a certificate; a fleet may share one (NAT)
WRONG_RATE, WRONG_BURST = 0.1, 10.0  # wrong one-time codes of one address


class Buckets:
    """Token buckets, one per key: `rate` requests per second each, and `burst` at once.

    Keeps the `most` keys used last: what was forgotten starts again with a full bucket.
    """

    def __init__(self, rate: float, burst: float, most: int = 10_000) -> None:
        self._rate, self._burst, self._most = rate, burst, most
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, key: str, *, take: bool = True) -> float:
        """Take a token, unless it is only asked for, and return 0; where there is none, the seconds until then."""
        now = time.monotonic()
        level, seen = self._levels.pop(key, (self._burst, now))
        level = min(self._burst, level + (now - seen) * self._rate)
        enough = level >= 1.0
        self._levels[key] = (level - 1.0 if enough and take else level, now)
        if len(self._levels) > self._most:
            self._levels.popitem(last=False)
        return 0.0 if enough else (1.0 - level) / self._rate
