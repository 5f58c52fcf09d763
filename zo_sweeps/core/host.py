"""Names and sizes of this machine, and child processes that do not outlive their parent."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

GIB = 2**30
# Of zo_sweeps; its wheels are built with it.
VERSION = "0.1.0"


def processor() -> str:
    """Return the processor's model name from the kernel; falls back to Python's `platform`."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, "") or platform.processor() or platform.machine()


def version_of(package: str) -> str:
    """Return the version of an installed package; "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


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


_SIGNAL_AT_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG


def die_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when its parent dies, in whatever way (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_DEATH, number)
