"""Timing of functions that are compared: interleaved in one process, the minimum over the rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any


def interleaved(functions: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the seconds per call of each function: the minimum over `rounds` rounds that run every function once.

    One warm-up round is discarded. Interleaving spreads transient load evenly.
    """
    best = dict.fromkeys(functions, float("inf"))
    for number in range(rounds + 1):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            if number:
                best[name] = min(best[name], time.perf_counter() - began)
    return best
