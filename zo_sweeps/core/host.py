"""Names and sizes of this machine."""

from __future__ import annotations

import platform
from pathlib import Path

GIB = 2**30


def processor() -> str:
    """Return the processor's model name from the kernel; falls back to Python's `platform`."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, "") or platform.processor() or platform.machine()
