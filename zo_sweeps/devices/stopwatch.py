"""Time of a stretch of work, the GPU's part included."""

from __future__ import annotations

import time
from typing import Any


class Stopwatch:
    """Wall time between boundaries. On a GPU it waits for the queued work at the boundaries, and nowhere else.

    Args:
        device: a torch device or its name.
    """

    def __init__(self, device: Any) -> None:
        self._cuda = str(device) if str(device).startswith("cuda") else ""
        self._last = self._now()

    def lap(self) -> float:
        """Seconds since the last lap (or since it was made)."""
        now = self._now()
        seconds, self._last = now - self._last, now
        return seconds

    def _now(self) -> float:
        if self._cuda:
            import torch

            torch.cuda.synchronize(self._cuda)
        return time.perf_counter()
